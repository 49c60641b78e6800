"""State of jobs, offline: a snapshot written anew with another number of key groups, here or by Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow.sdk import Context

from penstock_airflow.command_options import REPARTITION
from penstock_airflow.operators.by_command import CommandOperator
from penstock_airflow.written import written_once


class RepartitionStateOperator(CommandOperator):
    """Write a snapshot anew as a savepoint, merged, with another number of key groups; return its `location`.

    `snapshot` is a savepoint, or CHECKPOINT_ROOT/JOB (its newest checkpoint, or the one of `checkpoint`); no job has to
    run, and no cluster. The savepoint gets a folder of its own below `target`. Where the state has more than
    `spark_above` bytes (without it the worker's `PENSTOCK_SPARK_ABOVE`, else 1 GiB) Spark does the work, on `master` or
    all cores of the worker, with the settings of `spark_conf`, unless `engine` is `local`; where the connection's
    `python` has none, and no `master` is given, the worker does it. A task that is run again takes the savepoint that
    an earlier try has finished, and removes what one that died has left.
    """

    template_fields: Collection[str] = (
        *CommandOperator.template_fields,
        "snapshot",
        "target",
        "options",
    )

    def __init__(
        self, *, snapshot: str, target: str, key_groups: int | str | None = None, options: Any = None, **kwargs: Any
    ) -> None:
        """`options`: `engine`, `master`, `spark_above` (bytes), `spark_conf` (a mapping), `checkpoint` (a sequence)."""
        super().__init__(**kwargs)
        self.snapshot = snapshot
        self.target = target
        self.options = {"key_groups": key_groups, **(options or {})}

    def execute(self, context: Context) -> dict[str, Any]:
        """Write it, in the worker."""
        attempts = self.attempts(context)
        name = f"repartitioned-{attempts.begin()[:12]}"
        location = written_once(self.target, name, context["ti"].try_number, self._write)
        attempts.end()
        return {"location": location}

    def on_kill(self) -> None:
        """End the process; what it has written is no savepoint yet."""
        self.end_command()

    def _write(self, location: str) -> None:
        said = self.run_command(["state", "repartition", self.snapshot, location], (self.options, REPARTITION))
        self.log.info("%s rows, %s bytes, %s key groups", said["rows"], said["bytes"], said["key-groups"])
