"""A headless Chromium of this machine, and what a page did wrong while it was looked at."""

import os
import shutil
from contextlib import contextmanager

from playwright.sync_api import Error, expect, sync_playwright
from tests.support.waiting import patience

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Nothing but what is tested: no updates, no look at the network for its own sake.
SWITCHES = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
#: What a page may take on a quiet machine.
PATIENCE_MS = 90_000
SIZE = {"width": 1366, "height": 768}


def patience_ms():
    """Return how long to wait for what a page shows: longer where others keep the machine busy."""
    return PATIENCE_MS * patience()


def executable():
    """The browser named by PENSTOCK_CHROMIUM, or one of this machine, or None: the one playwright has installed."""
    return os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium():
    """A running browser; where there is none the error says how to get one."""
    # Chromium refuses its sandbox to root.
    switches = [*SWITCHES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=patience_ms())
    with sync_playwright() as playwright:
        try:
            # its processes come and go as it likes: they are not the test's that looks for what it has left behind
            environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_TEST_SESSION"}
            browser = playwright.chromium.launch(executable_path=executable(), args=switches, env=environment)
        except Error as error:
            hint = "apt-get install -y chromium, or python -m playwright install chromium"
            raise AssertionError(f"no Chromium can be started ({error.message.splitlines()[0]}): {hint}") from error
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One reader: a page at a URL, every request it made, and all that went wrong in it."""

    def __init__(self, browser, url, *, scheme="light", token=None):
        """`token` is what the reader gives when the browser asks for a password."""
        self.url = url
        answer = None if token is None else {"username": "me", "password": token, "origin": url}
        self.context = browser.new_context(
            viewport=SIZE, color_scheme=scheme, locale="en-GB", timezone_id="UTC", http_credentials=answer
        )
        expect.set_options(timeout=patience_ms())
        self.context.set_default_timeout(patience_ms())
        self.page = self.context.new_page()
        self.problems, self.requests = [], []
        #: What the browser says of answers that the test wants to be refusals.
        self.wanted = "no such text"
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("console", self._note)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message):
        if message.type == "error":
            self.problems.append(f"error: {message.text} ({message.location['url']})")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.context.close()
        if error is None:
            problems = [text for text in self.problems if self.wanted not in text]
            assert not problems, problems
            outside = [u for u in self.requests if not u.startswith(self.url + "/")]
            assert not outside, f"the page asked others than its server: {outside}"

    def go(self, where=""):
        """Open a page of the interface by what stands behind its #."""
        self.page.goto(f"{self.url}/{'ui/#/' + where if where else ''}")
        return self.page
