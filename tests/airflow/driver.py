"""A local Airflow as its user has it: started by `infra/airflow.py`, driven through its REST API."""

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, unquote

from tests.airflow.conftest import ROOT
from tests.cluster.proc_tree import alive
from tests.support.waiting import patience, wait_until
from tests.ui.browser import patience_ms

LIMIT_S = 300
#: Airflow's SQLite waits up to 60 s for its lock: whoever asks has to wait longer.
API_S = 120
SIZE = {"width": 1366, "height": 768}
#: Of a picture; until the page has drawn what it has asked for.
MOST_BYTES, SETTLED_MS = 150_000, 2_500


class Airflow:
    """Context manager; `cluster` is the URL of a penstock cluster."""

    def __init__(self, home, port, cluster, environment):
        self.home, self.url = home, f"http://127.0.0.1:{port}"
        self._command = [sys.executable, str(ROOT / "infra" / "airflow.py")]
        self._options = ["--home", str(home), "--port", str(port), "--cluster", cluster]
        self._environment = {**os.environ, **environment}
        self._token = ""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            print(self.diagnosis())
        pids = self.pids()
        self._infra("stop")
        assert not [pid for pid in pids.values() if alive(pid)]

    def start(self):
        """Start what does not run."""
        return self._infra("start")

    def exports(self):
        """Lines for a shell, which then uses this Airflow."""
        return self._infra("env")

    def _infra(self, command):
        done = subprocess.run(
            [*self._command, command, *self._options], env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.diagnosis()}"
        return done.stdout

    def diagnosis(self):
        lines = []
        for log in sorted(self.home.glob("*.log")):
            lines += [f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:]]
        newest = sorted(self.home.glob("logs/**/attempt=*.log"), key=lambda path: path.stat().st_mtime)[-2:]
        for log in newest:
            lines += [f"--- {log.relative_to(self.home)}", *log.read_text(errors="replace").splitlines()[-12:]]
        return "\n".join(lines)

    def pids(self):
        """Component -> process id."""
        record = self.home / "airflow.json"
        return json.loads(record.read_text())["pids"] if record.exists() else {}

    def kill(self, component):
        """SIGKILL to a component and all it has started."""
        os.killpg(self.pids()[component], signal.SIGKILL)

    @property
    def password(self):
        return json.loads((self.home / "passwords.json").read_text())["admin"]

    def api(self, method, path, body=None, *, wanted=True):
        """The answer of the REST API; `wanted=False`: (status, answer) whatever it is."""
        if not self._token and path != "/auth/token":
            user = {"username": "admin", "password": self.password}
            self._token = self.api("POST", "/auth/token", user)["access_token"]
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )  # fmt: skip

        def answered():
            """The answer; None when SQLite refused a transaction that had read before another one wrote.

            SQLite then fails at once, without its time-out, and rolls back: the request can be repeated.
            """
            try:
                with urllib.request.urlopen(request, timeout=API_S * patience()) as answer:
                    status, said = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, said = error.code, error.read()
            return None if status == 500 and b"database is locked" in said else (status, said)

        status, said = wait_until(answered, lambda: f"{method} {path}\n{self.diagnosis()}", seconds=LIMIT_S, step=0.5)
        assert not wanted or status < 300, f"{method} {path}: {status} {said[:500]}"
        found = json.loads(said) if said else {}
        return found if wanted else (status, found)

    def wait_dags(self, dags):
        def there():
            return all(self.api("GET", f"/api/v2/dags/{dag}", wanted=False)[0] == 200 for dag in dags)

        wait_until(there, lambda: f"{dags}\n{self.diagnosis()}", seconds=LIMIT_S, step=0.5)
        errors = self.api("GET", "/api/v2/importErrors")["import_errors"]
        assert not errors, errors

    def trigger(self, dag, **conf):
        """Start a run and return its id."""
        run = {"dag_run_id": f"test-{secrets.token_hex(6)}", "logical_date": None, "conf": conf}
        return self.api("POST", f"/api/v2/dags/{dag}/dagRuns", run)["dag_run_id"]

    def unpause(self, dag):
        """From now on the scheduler makes its runs."""
        self.api("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": False})

    def task(self, dag, run, task):
        return self.api("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}")

    def wait_task(self, dag, run, task, *states):
        def reached():
            found = self.task(dag, run, task)["state"]
            return found if found in states else None

        return wait_until(reached, lambda: f"{dag}.{task} {states}\n{self.diagnosis()}", seconds=LIMIT_S, step=0.2)

    def wait_run(self, dag, run, state="success", *, again=False):
        """Wait for the end of a run; no task of one that succeeds has been tried again, unless `again`."""

        def ended():
            found = self.api("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"]
            return found if found in ("success", "failed") else None

        found = wait_until(ended, lambda: f"the end of {dag} {run}\n{self.diagnosis()}", seconds=LIMIT_S, step=0.3)
        tries = {
            task["task_id"]: (task["state"], task["try_number"])
            for task in self.api("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        }
        assert found == state, f"{dag} {run} is {found}: {tries}\n{self.diagnosis()}"
        hidden = {task: number for task, (_, number) in tries.items() if number > 1}
        assert again or state != "success" or not hidden, (
            f"{dag} {run}: a retry hides a failure: {tries}\n{''.join(self.log(dag, run, task) for task in hidden)}"
        )

    def wait_trigger(self, dag, run, text, *, attempt=1):
        """Wait until the triggerer has written `text` into a task's log, at that attempt."""
        logs = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}"

        def written():
            return any(text in log.read_text() for log in logs.glob(f"**/attempt={attempt}.*.trigger.*"))

        wait_until(written, lambda: f"{text!r} of a trigger\n{self.diagnosis()}", seconds=LIMIT_S, step=0.2)

    def result(self, dag, run, task):
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return self.api("GET", path)["value"]

    def log(self, dag, run, task):
        """What all tries of a task, and their triggers, have written."""
        folder = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id={task}"
        return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log*")))

    def clear(self, dag, run, task):
        body = {"dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": False, "reset_dag_runs": True}
        self.api("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)

    def mark_failed(self, dag, run, task):
        self.api("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": "failed"})


class Reader:
    """A user in front of Airflow's own UI; pictures go to a folder, where one is given."""

    def __init__(self, browser, airflow, pictures=None):
        self.airflow, self.pictures = airflow, pictures
        #: DAGs of which a run has succeeded.
        self.done = set()
        self.page = browser.new_page(viewport=SIZE)
        self.page.set_default_timeout(patience_ms())
        self.page.goto(f"{airflow.url}/")
        self.page.locator("input[name=username]").fill("admin")
        self.page.locator("input[name=password]").fill(airflow.password)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "/auth/login" not in url)

    def run(self, dag, *, picture="", **fields):
        """Fill the form of a DAG, start a run and wait for its success; return its id."""
        self.page.goto(f"{self.airflow.url}/dags/{dag}")
        self.page.get_by_test_id("trigger-dag-button").click()
        form = self.page.get_by_role("dialog")
        for field, value in fields.items():
            if isinstance(value, dict):
                self._edit(form.locator(f"#element_{field}"), json.dumps(value))
                continue
            box = form.locator(f"input[name=element_{field}]")
            box.fill(str(value))
            box.blur()
        if picture:
            self.take(picture)
        form.get_by_role("button", name="Trigger", exact=True).click()
        self.page.wait_for_url(f"**/dags/{dag}/runs/**")
        run = unquote(self.page.url.partition("/runs/")[2].partition("/")[0].partition("?")[0])
        self.airflow.wait_run(dag, run)
        self.page.reload()
        self.page.get_by_text("Success").first.wait_for()
        self.take(f"airflow-run-{dag}")
        self.done.add(dag)
        return run

    def docs(self, dag):
        """The text of the documentation of a DAG, as its page shows it."""
        self.page.goto(f"{self.airflow.url}/dags/{dag}")
        self.page.get_by_role("button", name="Dag Docs").click()
        shown = self.page.get_by_role("dialog")
        shown.get_by_role("heading", level=3).first.wait_for()
        return shown.inner_text()

    def look(self, dag, *, picture):
        """Open the page of a DAG, with the grid of its runs."""
        self.page.goto(f"{self.airflow.url}/dags/{dag}")
        self.page.get_by_text("restore").first.wait_for()
        self.take(picture)

    def link(self, dag, run, task, *, picture=""):
        """Where the link to the job's page leads."""
        self.page.goto(f"{self.airflow.url}/dags/{dag}/runs/{quote(run)}/tasks/{task}/details")
        link = self.page.get_by_role("link", name="Job", exact=True)
        link.wait_for()
        if picture:
            self.take(picture)
        return link.get_attribute("href")

    def _edit(self, editor, text):
        """Replace what an editor of JSON holds."""
        editor.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Control+Shift+End")  # what the editor has closed by itself
        self.page.keyboard.press("Delete")

    def take(self, name):
        """Take a picture of the page, where pictures are asked for."""
        if not self.pictures:
            return
        self.page.wait_for_timeout(SETTLED_MS)
        path = Path(self.pictures) / f"{name}.png"
        self.page.screenshot(path=path)
        assert path.stat().st_size < MOST_BYTES
