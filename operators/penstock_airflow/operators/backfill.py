"""Backfills: a check whether a job qualifies, and the backfill itself, in the worker or by Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from penstock_airflow.attempts import written_once
from penstock_airflow.command_options import BACKFILL, CHECK_BACKFILL
from penstock_airflow.conditions import TERMINAL
from penstock_airflow.operators.command import CommandOperator

#: Exit code of `penstock check` when an operator is refused.
_REFUSED = 1


class CheckBackfillOperator(CommandOperator):
    """Check whether a job gives the same result in a backfill as live; fail if it does not.

    Reads and starts nothing.

    It also fails if a job of that name runs in the cluster: that one would keep its state, and the savepoint would be
    useless. `may_run=True` skips this check, and needs no cluster. Returns `accepted`: the uids of operators that are
    accepted by name. `options` are those of `penstock check --backfill`: `accept` (a list of uids), `settings`, and
    `environment` for the job file; for tables `history`, `offsets`, `sparse` (lists), `cut_over` and `until`: their
    footers are read, and the source's positions are requested.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "job_file", "options")

    def __init__(
        self, *, job_file: str, options: Mapping[str, Any] | None = None, may_run: bool = False, **kwargs: Any
    ) -> None:
        """Take `job_file`, a path on the workers."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.options = dict(options or {})
        self.may_run = may_run

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Check; this takes as long as importing the job file."""
        head = ["check", self.job_file, "--backfill"]
        found = self.run_command(head, (self.options, CHECK_BACKFILL), accepted_codes=(_REFUSED,))
        refused = [finding for finding in found["findings"] if not finding["accepted"]]
        if refused:
            raise AirflowFailException(f"the job cannot be backfilled: {'; '.join(map(_refusal, refused))}")
        if not self.may_run:
            self._require_absent(str(found["job"]))
        return {"accepted": [finding["uid"] for finding in found["findings"]]}

    def on_kill(self) -> None:
        """End the process."""
        self.end_command()

    def _require_absent(self, name: str) -> None:
        jobs = self.hook.run(lambda client: client.jobs())
        running = [job["jid"] for job in jobs if job["name"] == name and job["state"] not in TERMINAL]
        if running:
            raise AirflowFailException(
                f"job {name!r} runs already ({running[0]}): stop it, or give this one another name"
            )


def _refusal(finding: Mapping[str, Any]) -> str:
    way_out = f"to accept it, add {finding['uid']!r} to `accept`" if finding["acceptable"] else finding["way_out"]
    return f"{finding['uid']} ({finding['kind']}): {finding['reason']}{f' ({way_out})' if way_out else ''}"


class BackfillOperator(CommandOperator):
    """Compute a job's history up to an end position, as a savepoint to start the job from; return its `location`.

    No job or cluster has to run. Nothing is published before a start from the savepoint, which gets a new folder below
    `target`. `until` is the end, as in `penstock backfill --until`. With `options["master"]` Spark does the work, with
    the settings of `spark_conf` (a mapping); Spark has to be installed for the connection's `python`. Further
    `options`: `parts` (key ranges), `accept` (a list of uids), `settings`, and `environment` (variables for the job
    file); for tables with the first part `history`, `offsets`, `sparse` (lists) and `cut_over`.

    A repeated task uses the savepoint that an earlier try has finished, and removes the files of one that died. Cleared
    after its success it computes again: there may be more history by then.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "job_file", "target", "options")

    def __init__(
        self, *, job_file: str, target: str, until: str | None = None, options: Any = None, **kwargs: Any
    ) -> None:
        """Take `job_file`, a path on the workers; `until=None` means everything available now."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.target = target
        self.options = {"until": until, **(options or {})}

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the backfill, in the worker."""
        attempts = self.attempts(context)
        name = f"backfilled-{attempts.begin()[:12]}"
        location = written_once(self.target, name, context["ti"].try_number, self._write)
        attempts.end()
        return {"location": location}

    def on_kill(self) -> None:
        """End the process; its files are not a savepoint so far."""
        self.end_command()

    def _write(self, location: str) -> None:
        said = self.run_command(["backfill", self.job_file, "--to", location], (self.options, BACKFILL))
        self.log.info(
            "%s rows, %s of output staged, positions %s", said["rows"], said["staged_rows"], said["positions"]
        )
