"""One run of the main job on a cluster of real processes, broken on purpose, judged from outside.

`Scene` holds the topics, the feed, the cluster and the job; the tests and `tests.cluster.matrix` drive it.
"""

import json
import os
import secrets
import signal
import threading
import time
from dataclasses import replace

from minio.error import S3Error
from tests.cluster import proc_tree
from tests.cluster.job_file import Job
from tests.cluster.orders import Feed, create_topics, read_windows, verdict
from tests.cluster.proc_tree import wait_until
from tests.cluster.stage import graph_of

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import encode_graph
from penstock.testing.servers import s3

TERMINAL = ("FINISHED", "CANCELED", "FAILED")
POLL_S = 0.15
#: A JobManager that is held at a failpoint answers nobody: do not wait for it for long.
REST_LIMIT_S = 1.0
#: One that is asked for a savepoint tries the target first, which may take the store a while.
TRIED_LIMIT_S = 30.0
END_LIMIT_S = 75.0


class Scene:
    """Topics, feed, cluster and one job on it; a context manager that ends all of them."""

    def __init__(self, stage, orders, *, rate=4_000, taskmanagers=2, failpoints=None, job=None, watch=True, hosts=()):
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
        config = replace(self._config(taskmanagers, failpoints or {}, watch), data_hosts=hosts)
        self.cluster = LocalCluster(config)
        self.job_id = ""
        self.workers = []
        self._clients = {}

    def _config(self, taskmanagers, failpoints, watch):
        environment = dict(self.stage.environment)
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
        self.cluster.start()
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            print(self.diagnosis())  # shown by pytest beside the failure
        for path in self.failpoints_hit():
            self.release(path)
        self.feed.end()
        self.cluster.close()
        for client in self._clients.values():
            client.close()

    # --- asking ---------------------------------------------------------------------------------------------------

    @property
    def rest(self):
        """A client of the cluster as it is now."""
        url = self.cluster.rest_url
        if url not in self._clients:
            self._clients[url] = RestClient(url, timeout_seconds=REST_LIMIT_S)
        return self._clients[url]

    def ask(self, question, default=None):
        """The answer of `question(rest)`, or `default` while no JobManager answers."""
        try:
            return question(self.rest)
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
            f"scene in {self.folder}, job {self.job_id}, state {self.state()!r}, restarted {self.cluster.restarts}"
        ]
        failures = self.ask(lambda rest: rest.exceptions(self.job_id), {})
        lines.append(f"failure: {failures.get('root-exception')}")
        lines += [f"{entry['at_ms']} {entry['kind']} {entry['text']}" for entry in self.story()[-40:]]
        for log in sorted(self.cluster.directory.glob("*.log")):
            lines += [f"--- {log.name}", *log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]]
        return "\n".join(lines)

    # --- acting ---------------------------------------------------------------------------------------------------

    def begin(self):
        """Submit the job, and feed it once it runs."""
        self.submit()
        self.wait_running()
        self.feed.start()
        return self.job_id

    def wait_running(self, seconds=40.0):
        """Wait until all subtasks run."""

        def running():
            counts = self.ask(lambda rest: rest.job(self.job_id)["status-counts"], {})
            return counts.get("RUNNING") and not any(n for state, n in counts.items() if state != "RUNNING")

        wait_until(running, seconds, lambda: f"a running job\n{self.diagnosis()}", POLL_S)

    def submit(self, *, job=None, token="", limit=60.0, **options):
        """Submit (again, under one token, until a JobManager has taken it) and return the job id."""
        graph = encode_graph(graph_of(job or self.job, self.folder))
        token = token or secrets.token_hex(8)
        deadline = time.monotonic() + limit
        while True:
            try:
                with RestClient(self.cluster.rest_url, timeout_seconds=10) as rest:
                    self.job_id = rest.submit(graph, token=token, **options)
                return self.job_id
            except PenstockError as error:
                if "no JobManager answers" not in error.message or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def submit_in_background(self, **options):
        """Submit from a thread: the JobManager may be held or killed while it takes the job."""
        thread = threading.Thread(target=lambda: self.submit(**options), daemon=True)
        thread.start()
        return thread

    def wait_checkpoints(self, count, seconds=40.0):
        wait_until(
            lambda: self.completed() >= count, seconds, lambda: f"{count} checkpoints\n{self.diagnosis()}", POLL_S
        )

    def wait_state(self, states, seconds=END_LIMIT_S):
        wait_until(lambda: self.state() in states, seconds, lambda: f"state {states}\n{self.diagnosis()}", POLL_S)
        return self.state()

    def wait_replaced(self, gone, seconds):
        """Wait until the job runs on workers none of which is in `gone`."""

        def replaced():
            workers = self.ask(lambda rest: rest.workers(self.job_id), [])
            pids = {int(w["pid"]) for w in workers}
            running = self.ask(lambda rest: rest.job(self.job_id)["status-counts"]["RUNNING"], 0)
            return pids and not pids & gone and running and self.state() == "RUNNING"

        wait_until(replaced, seconds, lambda: f"a successor of {gone}\n{self.diagnosis()}", POLL_S)

    def wait_finished(self, seconds=END_LIMIT_S):
        state = self.wait_state(TERMINAL, seconds)
        assert state == "FINISHED", self.diagnosis()

    def _savepoint_answer(self, ask, seconds):
        with RestClient(self.cluster.rest_url, timeout_seconds=TRIED_LIMIT_S) as rest:
            request = ask(rest)

        def answer():
            found = self.ask(lambda rest: rest.savepoint_status(self.job_id, request))
            return found if found and found["status"]["id"] == "COMPLETED" else None

        operation = wait_until(answer, seconds, lambda: f"savepoint\n{self.diagnosis()}", POLL_S)["operation"]
        assert "failure-cause" not in operation, operation
        return operation["location"]

    def savepoint(self, target=None, seconds=30.0):
        return self._savepoint_answer(lambda rest: rest.savepoint(self.job_id, target), seconds)

    def stop(self, *, drain=False, target=None, seconds=30.0):
        """Stop with a savepoint, wait for FINISHED, return where the savepoint lies."""
        uri = self._savepoint_answer(lambda rest: rest.stop(self.job_id, drain=drain, target=target), seconds)
        self.wait_finished(seconds)
        return uri

    # --- breaking -------------------------------------------------------------------------------------------------

    def failpoints_hit(self):
        return sorted(path.stem for path in self.evidence.glob("*.hit"))

    def wait_hit(self, point, seconds=45.0):
        """Wait for the evidence that a process is held at `point`; keep the list of workers fresh meanwhile."""
        path = self.evidence / f"{point}.hit"

        def hit():
            if path.exists() and path.read_text(encoding="utf-8").endswith("\n"):
                return True
            if self.job_id:
                self.look_at_workers()
            return False

        wait_until(hit, seconds, lambda: f"failpoint {point} was not hit\n{self.diagnosis()}", POLL_S)
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
        client = s3.client(self.stage.minio)
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
        return found

    def with_job(self, **changes):
        return replace(self.job, **changes)
