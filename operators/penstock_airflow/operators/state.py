"""State of jobs: rewrite it with another number of key groups or in another place, in the worker or by Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from airflow.sdk import Context

from penstock_airflow.attempts import written_once
from penstock_airflow.command_options import PREPARE, REPARTITION
from penstock_airflow.operators.command import CommandOperator


class PrepareStateOperator(CommandOperator):
    """Rewrite the large files of a running job's state into `folder`; return how many are there.

    The job continues. `RepartitionStateOperator` and `penstock state rekey` use the files with `prepared`, and write
    only what is new since. `snapshot` is CHECKPOINT_ROOT/JOB. A repeated task adds the files that are missing. With
    `uid` and `key` in `options` the files get another key.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "snapshot", "folder", "options")

    def __init__(self, *, snapshot: str, folder: str, options: Any = None, **kwargs: Any) -> None:
        """Use `options` of `RepartitionStateOperator`, except `key_groups`, and `uid` and `key` (a list)."""
        super().__init__(**kwargs)
        self.snapshot = snapshot
        self.folder = folder
        self.options = dict(options or {})

    def perform(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Rewrite them, in the worker."""
        said = self.run_command(["state", "prepare", self.snapshot, self.folder], (self.options, PREPARE))
        self.log.info("%s files rewritten, %s there already, %s gone", said["written"], said["reused"], said["gone"])
        return {"folder": self.folder, "files": said["written"] + said["reused"]}

    def on_kill(self) -> None:
        """End the process; files that it has finished stay."""
        self.end_command()


class RepartitionStateOperator(CommandOperator):
    """Rewrite a snapshot as a merged savepoint with another number of key groups; return its `location`.

    `snapshot` is a savepoint, or CHECKPOINT_ROOT/JOB (its newest checkpoint, or the one of `checkpoint`); no job or
    cluster has to run. The savepoint gets a new folder below `target`. If the state has more than `spark_above` bytes
    (default: the worker's `PENSTOCK_SPARK_ABOVE`, else 1 GiB) Spark does the work, on `master` or all cores of the
    worker, with the settings of `spark_conf`, unless `engine` is `local`. If the connection's `python` has no Spark,
    and no `master` is given, the worker does it. `prepared` is the folder of a `PrepareStateOperator`. A repeated task
    uses the savepoint that an earlier try has finished, and removes the files of one that died.
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
        """Use `options`: `engine`, `master`, `spark_above`, `spark_conf`, `checkpoint` (sequence), `prepared`."""
        super().__init__(**kwargs)
        self.snapshot = snapshot
        self.target = target
        self.options = {"key_groups": key_groups, **(options or {})}

    def perform(self, context: Context) -> dict[str, Any]:
        """Rewrite it, in the worker."""
        attempts = self.attempts(context)
        name = f"repartitioned-{attempts.begin()[:12]}"
        location = written_once(self.target, name, context["ti"].try_number, self._write)
        attempts.end()
        return {"location": location}

    def on_kill(self) -> None:
        """End the process; its files are not a savepoint so far."""
        self.end_command()

    def _write(self, location: str) -> None:
        said = self.run_command(["state", "repartition", self.snapshot, location], (self.options, REPARTITION))
        self.log.info("%s rows, %s bytes, %s key groups", said["rows"], said["bytes"], said["key-groups"])
