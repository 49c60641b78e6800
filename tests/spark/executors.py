"""Programs on two executors of their own, seen from outside: their processes, and what Spark notes of them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster import proc_tree
from tests.support.files import files_below
from tests.support.waiting import patience, wait_until

MASTER = "local-cluster[2,1,1024]"
#: Of a program from its start, against hangs.
LIMIT_S = 500
SETTINGS = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.locality.wait": "0",
}


def executors(driver):
    """Pids of the JVMs of the executors below a process."""
    return [pid for pid, words in _words(driver) if _is_executor(words)]


def _is_executor(words):
    return words[0].endswith(b"java") and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words


def is_taskmanager(pid):
    """Whether a process is a TaskManager that has been started with its arguments."""
    with contextlib.suppress(OSError):
        words = _command(pid)
        return b"penstock.cli.serve" in words and b"taskmanager" in words
    return False


def _words(ancestor):
    for pid in proc_tree.descendants(ancestor):
        with contextlib.suppress(OSError):
            yield pid, _command(pid)


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


class OnExecutors:
    """One program that starts Spark with two executors; `tries` is how often Spark runs a task before it gives up."""

    def __init__(self, folder, *words, tries=4, **environment):
        self._folder, self._killed = folder, []
        for name in ("conf", "events", "local"):
            (folder / name).mkdir()
        own = {
            "spark.eventLog.dir": f"file:{folder}/events",
            "spark.local.dir": f"{folder}/local",
            "spark.task.maxFailures": str(tries),
        }
        lines = [f"{name} {value}\n" for name, value in {**SETTINGS, **own}.items()]
        (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
        # a killed task leaves its temporary folder: it lies in this test's
        temporary = str(folder / "local")
        given = {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": temporary}
        self._said = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)], env={**os.environ, **given, **environment}, cwd=folder,
            stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        proc_tree.signal_all([*proc_tree.descendants(self.process.pid), self.process.pid], signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self._said.close()

    def kill(self, pids, *, workers=False):
        """Kill executors, if told so with the workers below them, and wait for the end of both."""
        below = [pid for executor in pids for pid in proc_tree.descendants(executor)]
        self._killed += [_number(pid) for pid in pids]
        proc_tree.signal_all([*pids, *below] if workers else pids, signal.SIGKILL)
        left = lambda: list(filter(proc_tree.alive, [*pids, *below]))
        wait_until(lambda: not left(), lambda: f"the end of executors and workers {left()}")

    def wait(self, condition, what, *, step=0.02):
        """Wait until the program has done something; it runs meanwhile."""

        def done():
            found = condition()
            code = self.process.poll()
            assert found or code is None, f"ended with {code} before {what}\n{self.tail()}"
            return found

        return wait_until(done, lambda: f"{what}\n{self.seen()}\n{self.tail()}", seconds=120, step=step)

    def tail(self):
        """The end of what the program has said."""
        return (self._folder / "stderr").read_text()[-2000:]

    def seen(self):
        """Executors that live, what they keep, and the executors and tasks that Spark has noted."""
        alive = executors(self.process.pid)
        events = [line for log in self._logs() for line in log.read_text().splitlines()]
        kinds = ('"SparkListenerTask', '"SparkListenerExecutor')
        noted = [json.loads(line) for line in events if any(kind in line for kind in kinds)]
        shown = [
            f"{event['Event'].removeprefix('SparkListener')} {event.get('Executor ID', '')}"
            f" {event.get('Stage ID', '')} {event.get('Task Info', {}).get('Index', '')}"
            f" on {event.get('Task Info', {}).get('Executor ID', '')}"
            for event in noted
        ]
        return f"executors {alive}, kept {self.kept('rdd_.*')}, events: {'; '.join(shown)}"

    def executor_of(self, worker):
        """Return the executor whose task runs in a Python worker."""
        found = worker
        while not _is_executor(_command(found)):
            found = proc_tree.parent(found)
        return found

    def kept(self, pattern):
        """Names of the whole files of shuffles and of persisted rows that executors keep, if of that form.

        Spark makes a file when it begins to write it: one that an executor has open counts for nothing.
        """
        names = {path.name for path in files_below(self._folder / "local") if re.fullmatch(pattern, path.name)}
        return sorted(names - {name for pid in executors(self.process.pid) for name in _open_in(pid)})

    def jobs(self):
        """Return the number of jobs that Spark has noted; it notes one when it starts."""
        return sum('"SparkListenerJobStart"' in line for log in self._logs() for line in log.read_text().splitlines())

    def has_executors_for(self, job):
        """Return whether Spark has started that many jobs before, then this one, and an executor lives."""
        return self.jobs() > job and executors(self.process.pid) != []

    def _logs(self):
        return (self._folder / "events").iterdir()

    def end(self):
        """Wait for the end; return the exit code, what was printed, and what was said."""
        out, _ = self.process.communicate(timeout=LIMIT_S * patience())
        return self.process.returncode, out, (self._folder / "stderr").read_text()

    def lost(self):
        """Return why Spark has lost tasks of the executors that were killed, by their numbers; it has lost them all."""
        (log,) = self._logs()
        events = [json.loads(line) for line in log.read_text().splitlines()]
        removed = {event["Executor ID"] for event in events if event["Event"] == "SparkListenerExecutorRemoved"}
        assert self._killed, "the test shows nothing"
        assert set(self._killed) <= removed
        found = {number: set() for number in self._killed}
        for event in events:
            if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Executor ID"] in found:
                found[event["Task Info"]["Executor ID"]].add(event["Task End Reason"]["Reason"])
        return found


def _open_in(pid):
    with contextlib.suppress(OSError):  # it has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed
                yield descriptor.readlink().name


def _number(executor):
    words = _command(executor)
    return words[words.index(b"--executor-id") + 1].decode()
