"""Airflow's page of connections, as a user works with it; `test_real_ui.py` calls it."""

from playwright.sync_api import expect

#: Names of what the form may show of every type, as its page calls them.
STANDARD = ("description", "host", "login", "password", "port", "schema")


class Connections:
    """The list of the saved ones, and the form of a new one; `reader` is a `tests.airflow.driver.Reader`."""

    def __init__(self, reader):
        self.reader, self.page = reader, reader.page

    def open(self):
        self.page.goto(f"{self.reader.airflow.url}/connections")
        self.page.get_by_role("button", name="Add Connection").wait_for()

    def add(self, connection_id, *, picture="", extra=None, **fields):
        """Fill the form of type penstock and save it.

        Return what it has shown: label -> placeholder, or what an extra field holds.
        """
        self.open()
        self.page.get_by_role("button", name="Add Connection").click()
        form = self.page.get_by_role("dialog")
        form.locator("input[name=connection_id]").fill(connection_id)
        form.get_by_role("combobox").click()
        self.page.get_by_role("option", name="penstock", exact=True).click()
        form.locator("input[name=host]").wait_for()
        shown = {}
        for box in filter(lambda box: box.count(), (form.locator(f"[name={name}]") for name in STANDARD)):
            shown[self._field(box).locator("label").inner_text()] = box.get_attribute("placeholder")
        for name, value in fields.items():
            form.locator(f"[name={name}]").fill(str(value))
        if picture:
            self.reader.take(picture)
        form.get_by_role("button", name="Extra Fields", exact=True).click()
        for name, value in (extra or {}).items():
            box = form.locator(f"[name=element_{name}]")
            box.fill(str(value))
            box.blur()
        boxes = form.locator("[name^=element_]").all()
        shown |= {self._field(box).locator("label").inner_text(): box.input_value() for box in boxes}
        form.get_by_role("button", name="Save").click()
        expect(form).to_have_count(0)
        return shown

    def tested(self, connection_id):
        """Press the test button of a saved one; return title and text of what Airflow says."""
        self.open()
        row = self.page.get_by_role("row").filter(has_text=connection_id)
        row.get_by_role("button", name="Test Connection").click()
        said = self.page.locator("[data-scope=toast][data-part=root]")
        return said.locator("[data-part=title]").inner_text(), said.locator("[data-part=description]").inner_text()

    def _field(self, box):
        """The line of the form that has a box and its label."""
        return box.locator("xpath=ancestor::*[@role='group'][1]")
