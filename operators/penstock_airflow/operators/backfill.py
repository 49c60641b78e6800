"""A job's history computed as a batch: looking whether a job file can be, and the backfill itself, here or by Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from penstock_airflow.command_options import BACKFILL, CHECK_BACKFILL
from penstock_airflow.operators.by_command import CommandOperator
from penstock_airflow.questions import TERMINAL
from penstock_airflow.written import written_once

#: Exit code of `penstock check` when an operator is refused.
_REFUSED = 1


class CheckBackfillOperator(CommandOperator):
    """Say whether a job gives in a backfill what it gives live; fail when it does not. Nothing is read or started.

    It fails, too, when a job of that name runs in the cluster: that one would keep the state it has, and the savepoint
    would be of no use; `may_run=True` does not look, and needs no cluster. Returns `accepted`: the uids of operators
    that are taken by name. `options` are those of `penstock check --backfill`: `accept` (a list of uids), `settings`,
    and `environment` for the job file; of tables `history`, `offsets`, `sparse` (lists), `cut_over` and `until`: their
    footers are read, and the source is asked where it takes over.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "job_file", "options")

    def __init__(
        self, *, job_file: str, options: Mapping[str, Any] | None = None, may_run: bool = False, **kwargs: Any
    ) -> None:
        """`job_file` is a path on the workers."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.options = dict(options or {})
        self.may_run = may_run

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Look; this takes as long as the job file takes to be imported."""
        head = ["check", self.job_file, "--backfill"]
        found = self.run_command(head, (self.options, CHECK_BACKFILL), also=(_REFUSED,))
        refused = [finding for finding in found["findings"] if not finding["accepted"]]
        if refused:
            told = "; ".join(f"{finding['uid']} ({finding['kind']}): {finding['reason']}" for finding in refused)
            raise AirflowFailException(f"the job cannot be backfilled: {told}")
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
            raise AirflowFailException(f"job {name!r} runs already ({running[0]}): stop it, or give this one a name")


class BackfillOperator(CommandOperator):
    """Compute a job's history up to a cut, as a savepoint to start the job from; return its `location`.

    No job has to run, and no cluster; nothing is published before a start from the savepoint, which gets a folder of
    its own below `target`. `until` is the cut, as `penstock backfill --until` has it. With `options["master"]` Spark
    does the work, with the settings of `spark_conf` (a mapping); Spark has to be installed for the connection's
    `python`. Further `options`: `parts` (key ranges), `accept` (a list of uids), `settings`, and `environment`
    (variables that the job file reads); of tables that hold the first part `history`, `offsets`, `sparse` (lists) and
    `cut_over`.

    A task that is run again takes the savepoint that an earlier try has finished, and removes what one that died has
    left. Cleared after its success it computes anew: there may be more history by then.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "job_file", "target", "options")

    def __init__(
        self, *, job_file: str, target: str, until: str | None = None, options: Any = None, **kwargs: Any
    ) -> None:
        """`job_file` is a path on the workers; `until=None`: what is there now."""
        super().__init__(**kwargs)
        self.job_file = job_file
        self.target = target
        self.options = {"until": until, **(options or {})}

    def execute(self, context: Context) -> dict[str, Any]:
        """Compute it, in the worker."""
        attempts = self.attempts(context)
        name = f"backfilled-{attempts.begin()[:12]}"
        location = written_once(self.target, name, context["ti"].try_number, self._write)
        attempts.end()
        return {"location": location}

    def on_kill(self) -> None:
        """End the process; what it has written is no savepoint yet."""
        self.end_command()

    def _write(self, location: str) -> None:
        said = self.run_command(["backfill", self.job_file, "--to", location], (self.options, BACKFILL))
        self.log.info(
            "%s rows, %s of output staged, positions %s", said["rows"], said["staged_rows"], said["positions"]
        )
