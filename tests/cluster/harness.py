"""One run of the main job on a cluster of real processes, broken on purpose, judged from outside.

`Scene` holds the topics, the feed and the job, and the cluster unless the tests of a module share one (`shared`); the
tests and `tests.cluster.matrix` drive it.
"""

import contextlib
import json
import os
import secrets
import signal
import threading
from dataclasses import replace

from minio.error import S3Error
from tests.cluster import proc_tree
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, create_topics, read_windows, verdict
from tests.cluster.stage import cli, graph_of
from tests.support.waiting import wait_until

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.core.errors import NoJobManagerError, PenstockError
from penstock.graph.job_graph import encode_graph
from penstock_lab.servers import minio_local

TERMINAL = ("FINISHED", "CANCELED", "FAILED")
POLL_S = 0.1
#: A JobManager that is held at a failpoint answers nobody: `ask` does not wait for it for long.
QUICK_S = 1.0
#: Anything else is answered, however busy the machine is.
PATIENT_S = 120.0
SHOWN_ENTRIES, SHOWN_LINES = 40, 12


class Scene:
    """Topics, feed, cluster and one job on it; a context manager that ends them, but not a `cluster` that is given."""

    def __init__(
        self, stage, orders, *, cluster=None, rate=4_000, taskmanagers=2, failpoints=None, job=None, watch=True,
        hosts=(), jobmanagers=1, leases=None, ha_root=None,
    ):  # fmt: skip
        self.stage, self.orders = stage, orders
        self.name = stage.fresh("job")
        self.source, self.sink = stage.fresh("orders"), stage.fresh("totals")
        self.folder = stage.folder / self.name
        self.folder.mkdir()
        self.evidence = self.folder / "evidence"
        self.evidence.mkdir()
        options = {"stops": orders.stops(self.source), **(job or {})}
        self.job = Job(self.name, stage.bootstrap, self.source, self.sink, stage.root(self.name), **options)
        self.feed = Feed(stage.bootstrap, self.source, orders, rate)
        self._shared = cluster is not None
        if cluster is None:
            config = self._config(taskmanagers, failpoints or {}, watch, leases)
            cluster = LocalCluster(replace(config, data_hosts=hosts, jobmanagers=jobmanagers, ha_root=ha_root))
        self.cluster = cluster
        self.job_id = ""
        self.workers = []
        self._clients = {}

    def _config(self, taskmanagers, failpoints, watch, leases=None):
        environment = {**self.stage.environment, **(leases or {})}
        if failpoints:
            environment["PENSTOCK_FAILPOINTS"] = ";".join(f"{name}={action}" for name, action in failpoints.items())
            environment["PENSTOCK_FAILPOINT_DIR"] = str(self.evidence)
        return LocalClusterConfig(
            taskmanagers=taskmanagers,
            slots_per_taskmanager=1,
            directory=self.folder / "cluster",
            environment=environment,
            restart_dead=watch,
        )

    def __enter__(self):
        create_topics(self.stage.bootstrap, **{self.source: self.orders.partitions, self.sink: 2})
        if not self._shared:
            self.cluster.start()
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            print(self.diagnosis())  # shown by pytest beside the failure
        for path in self.failpoints_hit():
            self.release(path)
        self.feed.end()
        if not self._shared:
            self.cluster.close()
        for client in self._clients.values():
            client.close()

    # --- asking ---------------------------------------------------------------------------------------------------

    def _client(self, seconds):
        place = (self.cluster.address, seconds)
        if place not in self._clients:
            self._clients[place] = RestClient(self.cluster.address, timeout_seconds=seconds)
        return self._clients[place]

    @property
    def rest(self):
        """A client of the cluster as it is now, which waits for its answers."""
        return self._client(PATIENT_S)

    def ask(self, question, default=None):
        """The answer of `question(rest)`, or `default` while no JobManager answers soon."""
        try:
            return question(self._client(QUICK_S))
        except PenstockError:
            return default

    def state(self):
        return self.ask(lambda rest: rest.job(self.job_id)["state"], "")

    def summary(self):
        return self.ask(lambda rest: rest.summary(self.job_id), {})

    def completed(self):
        """Completed checkpoints of this job, as the present JobManager counts them."""
        return self.summary().get("checkpoints-completed", 0)

    def look_at_workers(self):
        """Remember the workers of the job: a held JobManager can not be asked for them."""
        found = self.ask(lambda rest: rest.workers(self.job_id), [])
        if found:
            self.workers = found
        return [w for w in self.workers if proc_tree.alive(int(w["pid"]))]

    def story(self):
        return self.ask(lambda rest: rest.story(self.job_id), [])

    def diagnosis(self):
        lines = [
            f"scene in {self.folder}, job {self.job_id}, state {self.state()!r}, restarted {self.cluster.restarts}",
            f"failpoints hit {self.failpoints_hit()}, sent {self.feed.sent} of {self.orders.events} orders",
        ]
        failures = self.ask(lambda rest: rest.exceptions(self.job_id), {})
        lines.append(f"failure: {failures.get('root-exception')}")
        story = self.story()
        shown = [entry for entry in story if entry["kind"] != "checkpoint" or entry in story[-3:]][-SHOWN_ENTRIES:]
        lines += [f"{entry['at_ms']} {entry['kind']} {entry['text']}" for entry in shown]
        for log in sorted(self.cluster.directory.glob("*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            lines += [f"--- {log.name}", *text.splitlines()[-SHOWN_LINES:]]
        return "\n".join(lines)

    def wait(self, condition, what, **limits):
        """Wait for a condition of this scene; a failure says how everything stands."""
        return wait_until(condition, lambda: f"{what}\n{self.diagnosis()}", **{"step": POLL_S, **limits})

    # --- acting ---------------------------------------------------------------------------------------------------

    def begin(self):
        """Submit the job, and feed it once it runs."""
        self.submit()
        self.wait_running()
        self.feed.start()
        return self.job_id

    def wait_running(self):
        """Wait until all subtasks run."""

        def running():
            counts = self.ask(lambda rest: rest.job(self.job_id)["status-counts"], {})
            return counts.get("RUNNING") and not any(n for state, n in counts.items() if state != "RUNNING")

        self.wait(running, "a running job")

    def submit(self, *, job=None, token="", **options):
        """Submit (again, under one token, until a JobManager has taken it) and return the job id."""
        graph = encode_graph(graph_of(job or self.job, self.folder))
        token = token or secrets.token_hex(8)

        def taken():
            try:
                with RestClient(self.cluster.rest_url, timeout_seconds=PATIENT_S) as rest:
                    return rest.submit(graph, token=token, **options)
            except NoJobManagerError:
                return ""

        self.job_id = self.wait(taken, "a JobManager that takes the job")
        return self.job_id

    def submit_in_background(self, **options):
        """Submit from a thread: the JobManager may be held or killed while it takes the job."""
        thread = threading.Thread(target=lambda: self.submit(**options), daemon=True)
        thread.start()
        return thread

    def ask_in_background(self, question):
        """Ask from a thread: the JobManager may be held or killed before it answers.

        Who gives up and closes the connection may take the request back with it.
        """

        def ask():
            client = RestClient(self.cluster.rest_url, timeout_seconds=PATIENT_S)
            with client as rest, contextlib.suppress(PenstockError):
                question(rest)

        threading.Thread(target=ask, daemon=True).start()

    def cancel(self):
        self.rest.cancel(self.job_id)
        self.wait_state(("CANCELED",))

    def wait_checkpoints(self, count):
        self.wait(lambda: self.completed() >= count, f"{count} checkpoints")

    def wait_rows(self):
        """Wait for output; return it."""
        return self.wait(self.rows, "output", step=0.3)

    def wait_state(self, states):
        self.wait(lambda: self.state() in states, f"state {states}", seconds=PATIENT_S)
        return self.state()

    def wait_replaced(self, gone):
        """Wait until the job runs on workers none of which is in `gone`."""

        def replaced():
            workers = self.ask(lambda rest: rest.workers(self.job_id), [])
            pids = {int(w["pid"]) for w in workers}
            running = self.ask(lambda rest: rest.job(self.job_id)["status-counts"]["RUNNING"], 0)
            return pids and not pids & gone and running and self.state() == "RUNNING"

        self.wait(replaced, f"a successor of {gone}")

    def wait_restarted(self):
        """Wait until a process of the cluster has been started again."""
        self.wait(lambda: self.cluster.restarts, "a dead process")

    def wait_finished(self):
        state = self.wait_state(TERMINAL)
        assert state == "FINISHED", self.diagnosis()

    def _savepoint_answer(self, ask):
        request = ask(self.rest)

        def answer():
            found = self.ask(lambda rest: rest.savepoint_status(self.job_id, request))
            return found if found and found["status"]["id"] == "COMPLETED" else None

        operation = self.wait(answer, "a savepoint")["operation"]
        assert "failure-cause" not in operation, operation
        return operation["location"]

    def savepoint(self, target=None, *, native=False):
        return self._savepoint_answer(lambda rest: rest.savepoint(self.job_id, target, native=native))

    def stop(self, *, drain=False, target=None, native=False):
        """Stop with a savepoint, wait for FINISHED, return where the savepoint lies."""
        uri = self._savepoint_answer(lambda rest: rest.stop(self.job_id, drain=drain, target=target, native=native))
        self.wait_finished()
        return uri

    # --- breaking -------------------------------------------------------------------------------------------------

    def failpoints_hit(self):
        return sorted(path.stem for path in self.evidence.glob("*.hit"))

    def wait_hit(self, point):
        """Wait for the evidence that a process is held at `point`; keep the list of workers fresh meanwhile."""
        path = self.evidence / f"{point}.hit"

        def hit():
            if path.exists() and path.read_text(encoding="utf-8").endswith("\n"):
                return True
            if self.job_id:
                self.look_at_workers()
            return False

        self.wait(hit, f"a process at failpoint {point}")
        return json.loads(path.read_text(encoding="utf-8").splitlines()[0])

    def release(self, point):
        (self.evidence / f"{point}.release").touch()

    def taskmanager_of(self, pid):
        """The supervisor process above a worker."""
        for child in self.cluster.taskmanagers:
            if pid in proc_tree.descendants(child.pid):
                return child
        raise AssertionError(f"process {pid} belongs to no TaskManager")

    def victims(self, evidence=None):
        """Workers that may be killed: the one held at the failpoint, or any of the job."""
        held = int(evidence["pid"]) if evidence else 0
        if held and held != self.cluster.jobmanager.pid:
            return [held]
        return [int(w["pid"]) for w in self.workers if proc_tree.alive(int(w["pid"]))]

    def victim_pid(self, victim, evidence=None, pick=0):
        """Which process to kill: the one held at the failpoint, or one of the job's workers, or what is above it."""
        if victim == "jobmanager":
            return self.cluster.jobmanager.pid
        workers = self.victims(evidence)
        if victim == "taskmanager" and not workers:
            return self.cluster.taskmanagers[pick % len(self.cluster.taskmanagers)].pid
        assert workers, f"no worker to kill\n{self.diagnosis()}"
        worker = workers[pick % len(workers)]
        return worker if victim == "worker" else self.taskmanager_of(worker).pid

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    # --- judging --------------------------------------------------------------------------------------------------

    def rows(self, sink=None):
        """The output as a read-committed reader sees it."""
        return read_windows(self.job.sink_bootstrap or self.stage.bootstrap, sink or self.sink)

    def verdict(self):
        return verdict(self.orders, self.rows(), self.job.window_ms)

    def manifests(self, name=None):
        """The entries of the job's log as they lie in the store, oldest first; those removed meanwhile are left out."""
        client = minio_local.client(self.stage.minio)
        prefix = f"{name or self.name}/"
        listed = client.list_objects(self.stage.bucket, prefix, recursive=True)
        keys = sorted(found.object_name for found in listed if "/manifests/" in found.object_name)
        found = []
        for key in keys:
            try:
                found.append(json.loads(client.get_object(self.stage.bucket, key).read()))
            except S3Error as error:
                if error.code != "NoSuchKey":
                    raise
        return found

    def check_exact(self):
        found = self.verdict()
        assert found.exact, f"{found}\n{self.diagnosis()}"
        if "jobmanager" in self.cluster.restarts:
            self.check_whole()
        return found

    def check_whole(self):
        """Every file that the job's log names is there and whole: another leader came, and retention went on."""
        root = f"{self.stage.root(self.name)}/{self.name}"
        said = cli("state", "fsck", root, cwd=self.folder, environment=self.stage.environment)
        assert said.code == 0, f"{said}\n{self.diagnosis()}"

    def with_job(self, **changes):
        return replace(self.job, **changes)
