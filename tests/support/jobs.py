"""Ends jobs that a test leaves running on a shared cluster."""

from penstock.client.handle import TERMINAL
from penstock.core.errors import UsageError

_END_MS = 20_000


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
