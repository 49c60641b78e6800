"""Lifecycle actions as a reader of the web interface takes them; a way of `tests.cluster.lifecycle`."""

import re

from playwright.sync_api import expect

from penstock.api.job_file import planned
from penstock.graph.job_graph import encode_graph


def confirmed(page, action, button, **fields):
    """Choose an action, fill in its question, confirm."""
    page.get_by_role("group", name="Actions").get_by_role("button", name=action).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for label, value in fields.items():
        field = dialog.get_by_label(label.replace("_", " "))
        kind = field.get_attribute("type")
        fill = {"file": field.set_input_files, "checkbox": field.set_checked}.get(kind, field.fill)
        fill(value)
    dialog.get_by_role("button", name=button).click()


class BrowserWay:
    """Everything by what is on the pages of one visit."""

    def __init__(self, visit):
        self.visit, self.page = visit, visit.page
        visit.wanted = "ERR_FAILED"  # the browser tells of the answer that is lost
        self.submitted = {}

    def submit(self, file, token, from_uri=""):
        """The first answer is lost on its way, and the button pressed again: the page sends its token a second time."""
        if token in self.submitted:
            return self.submitted[token]
        page = self.visit.go("submit")
        page.get_by_label("Job", exact=True).set_input_files(self._written(file))
        page.get_by_label("Start from a savepoint").fill(from_uri)
        sent = []

        def lose(route):
            sent.append(route.request.url)
            route.fetch()
            route.abort()

        page.route("**/penstock/submit?*", lose, times=1)
        button = page.get_by_role("button", name="Submit", exact=True)
        button.click()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        with page.expect_request("**/penstock/submit?*") as again:
            button.click()
        expect(page.get_by_role("group", name="Actions")).to_be_visible()
        assert sent == [again.value.url]
        self.submitted[token] = page.locator("header.job code").inner_text()
        return self.submitted[token]

    def savepoint(self, _job_id, target):
        return self._located("Savepoint", "Take a savepoint", target, "Savepoint written")

    def rescale(self, _job_id, parallelism):
        confirmed(self.page, "Rescale", "Rescale", Subtasks=str(parallelism))
        self._told(f"runs with {parallelism} subtasks")

    def upgrade(self, _job_id, file):
        fields = {"The_new_version": self._written(file), "Checkpoints_on_trial": "2"}
        confirmed(self.page, "Upgrade", "Upgrade", **fields)
        self._told("is running the new version")

    def cancel(self, _job_id):
        confirmed(self.page, "Cancel", "Cancel the job")
        expect(self.page.locator("header.job .chip")).to_have_text("canceled")

    def stop(self, _job_id, target):
        return self._located("Stop", "Stop the job", target, "Stopped with a savepoint")

    def drain(self, _job_id, target):
        return self._located("Drain", "Drain and stop the job", target, "Drained, with a savepoint")

    def _located(self, action, button, target, told):
        confirmed(self.page, action, button, Folder=target)
        return re.search(rf"{told}: (\S+)", self._told(told))[1]

    def _told(self, text):
        found = self.page.locator("#toasts").get_by_text(text)
        expect(found).to_be_visible()
        return found.inner_text()

    def _written(self, file):
        path = file.with_suffix(".penstock")
        path.write_bytes(encode_graph(planned(file, {}, "")))
        return path
