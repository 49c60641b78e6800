"""Jobs of a test on a cluster: started from a job file, and ended if they are left running."""

import os
import subprocess
import sys

from penstock.client.handle import TERMINAL
from penstock.core.errors import UsageError

_END_MS = 20_000
_START_S = 120.0


def run_job_file(folder, text, url, environment=os.environ):
    """Write a job file and run it as a user does, on the cluster at `url`; return when the job is submitted."""
    (folder / "job.py").write_text(text)
    environment = {**environment, "PENSTOCK_CLUSTER": url}
    subprocess.run([sys.executable, "job.py"], cwd=folder, env=environment, check=True, timeout=_START_S)


def end_jobs(client, besides=()):
    """Cancel every job that has not ended, except the ids in `besides`, and wait for their ends.

    A job may end by itself at the same time.
    """
    for job in client.jobs():
        if job["jid"] in besides or job["state"] in TERMINAL:
            continue
        try:
            client.cancel(job["jid"])
        except UsageError:
            if client.job(job["jid"])["state"] not in TERMINAL:
                raise
        client.job_after(job["jid"], _END_MS)


def overlapping(history):
    """The completed checkpoints that began before the one before them was complete."""
    done = sorted((entry for entry in history if entry["status"] == "COMPLETED"), key=lambda entry: entry["id"])
    ends = [entry["trigger_timestamp"] + entry["end_to_end_duration"] for entry in done]
    return [entry["id"] for entry, end in zip(done[1:], ends, strict=False) if entry["trigger_timestamp"] < end]
