"""Another version in the place of a running job: looking whether its state fits, and the upgrade itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import NotFoundError
from penstock_airflow.command_options import CHECK, UPGRADE
from penstock_airflow.deeds import LAST_MS, TakeBack
from penstock_airflow.operators.by_command import PARALLELISM, CommandOperator
from penstock_airflow.questions import Operation

#: Exit code of `penstock check` when the state does not fit.
_BLOCKED = 1


class CheckJobOperator(CommandOperator):
    """Say whether the state of a running job's newest checkpoint fits a job file; fail when it does not.

    Returns `job_id`, `snapshot` and `states`: how many have which verdict. Nothing is started or stopped. `options` are
    those of `penstock check`: `allow_non_restored_state`, `settings`, and `environment` for the job file.
    """

    template_fields: Collection[str] = (*CommandOperator.template_fields, "job", "job_file", "parallelism", "options")

    def __init__(
        self,
        *,
        job: str,
        job_file: str,
        parallelism: int | str | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`job` is an id or a name."""
        super().__init__(**kwargs)
        self.job = job
        self.job_file = job_file
        self.parallelism = parallelism
        self.options = dict(options or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Look; this takes as long as the job file takes to be imported."""
        job_id = self.job_id_of(self.job)
        self.about(context, job_id)
        newest = self.hook.run(lambda client: client.checkpoints(job_id))["latest"]["completed"]
        if newest is None:
            raise AirflowException(f"job {self.job!r} has no complete checkpoint yet")
        folder = str(newest["external_path"]).rpartition("/manifests/")[0]  # this one may be gone by then
        head, known = ["check", self.job_file, "--against", folder], {"parallelism": self.parallelism}
        found = self.run_command(head, (known, PARALLELISM), (self.options, CHECK), also=(_BLOCKED,))
        states: list[dict[str, Any]] = found["states"]
        if not found["ok"]:
            blocked = next(state for state in states if state["verdict"] == "blocked")
            msg = f"the state does not fit: {blocked['uid']} {blocked['state']}: {blocked['reason']}"
            raise AirflowFailException(msg)
        verdicts = [str(state["verdict"]) for state in states]
        counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        return {"job_id": job_id, "snapshot": found["snapshot"], "states": counts}


class UpgradeJobOperator(CommandOperator):
    """Put the job of a file in the place of a running one; done when it is healthy, and its output is released.

    Until then its output is held back. When it does not become healthy the old version goes on from where it stopped,
    and the task fails, without retries, and says why. Returns `job_id` and `location`: the savepoint of the old
    version. Retried or resumed by another process, the task waits for the upgrade it has asked for.

    `options` are those of `penstock upgrade`: `checkpoints`, `max_restarts`, `deadline`, `target`, `from_checkpoint`,
    `no_rollback`, `accept`, `allow_non_restored_state`, `settings`, and `environment` (variables that the job file
    reads). `on_kill`: when a user ends the task while it waits, `take_back` has the old version run again, `keep`
    leaves the upgrade to itself.
    """

    template_fields: Collection[str] = (
        *CommandOperator.template_fields,
        "job",
        "job_file",
        "parallelism",
        "options",
        "job_on_kill",
    )
    failure: ClassVar[type[AirflowException]] = AirflowFailException

    def __init__(
        self,
        *,
        job: str,
        job_file: str,
        parallelism: int | str | None = None,
        options: Mapping[str, Any] | None = None,
        on_kill: str = "take_back",
        timeout_seconds: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        """`job` is an id or a name."""
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.job = job
        self.job_file = job_file
        self.parallelism = parallelism
        self.options = dict(options or {})
        self.job_on_kill = on_kill
        self._deed: TakeBack | None = None

    def execute(self, context: Context) -> Any:
        """Ask for it, and wait."""
        if self.job_on_kill not in ("take_back", "keep"):
            raise AirflowFailException(f"on_kill={self.job_on_kill!r}: take_back or keep")
        attempts = self.attempts(context)
        token = attempts.begin()
        attempts.note(attempts.job_id or self.job_id_of(self.job))
        job_id = attempts.job_id
        self.about(context, job_id)
        self._deed = TakeBack(job_id, token) if self.job_on_kill == "take_back" else None
        try:
            self.hook.run(lambda client: client.upgrade_status(job_id, token))
        except NotFoundError:
            self._ask(job_id, token)
        return self.wait_for(context, Operation(job_id, token, "upgrade"), when_killed=self._deed)

    def on_kill(self) -> None:
        """End what this process has begun; the old version runs again if that was asked for."""
        self.end_command()
        deed = self._deed
        if deed is not None:
            self.hook.run(lambda client: deed.do(client, self.clock, LAST_MS))

    def _ask(self, job_id: str, token: str) -> None:
        head, known = ["upgrade", job_id, self.job_file], {"parallelism": self.parallelism}
        tail = ["--cluster", self.hook.place.url, "--detached", "--token", token]
        self.run_command(head, (known, PARALLELISM), (self.options, UPGRADE), tail=tail)
