"""Upgrades of a running job: a check whether its state fits, and the upgrade itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import NotFoundError
from penstock_airflow.command_options import CHECK, UPGRADE
from penstock_airflow.conditions import Operation
from penstock_airflow.kill_actions import LAST_MS, RollBackUpgrade
from penstock_airflow.operators.command import PARALLELISM, CommandOperator

#: Exit code of `penstock check` when the state does not fit.
_BLOCKED = 1


class CheckJobOperator(CommandOperator):
    """Check whether the state of a running job's newest checkpoint fits a job file; fail if it does not.

    Returns `job_id`, `snapshot` and `states`: the number of states by verdict. Nothing is started or stopped. `options`
    are those of `penstock check`: `allow_non_restored_state`, `settings`, and `environment` for the job file.
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
        """Take `job`, an id or a name."""
        super().__init__(**kwargs)
        self.job = job
        self.job_file = job_file
        self.parallelism = parallelism
        self.options = dict(options or {})

    def perform(self, context: Context) -> dict[str, Any]:
        """Check; this takes as long as importing the job file."""
        job_id = self.job_id_of(self.job)
        self.store_job_link(context, job_id)
        newest = self.hook.run(lambda client: client.checkpoints(job_id))["latest"]["completed"]
        if newest is None:
            raise AirflowException(f"job {self.job!r} has no complete checkpoint so far")
        # the checkpoint itself may be deleted by then
        folder = str(newest["external_path"]).rpartition("/manifests/")[0]
        head, known = ["check", self.job_file, "--against", folder], {"parallelism": self.parallelism}
        found = self.run_command(head, (known, PARALLELISM), (self.options, CHECK), accepted_codes=(_BLOCKED,))
        states: list[dict[str, Any]] = found["states"]
        if not found["ok"]:
            blocked = [state for state in states if state["verdict"] == "blocked"]
            told = "; ".join(dict.fromkeys(map(_refusal, blocked)))
            raise AirflowFailException(f"the state does not fit: {told}")
        verdicts = [str(state["verdict"]) for state in states]
        counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
        return {"job_id": job_id, "snapshot": found["snapshot"], "states": counts}


def _refusal(state: Mapping[str, Any]) -> str:
    place = f" ({state['where']})" if state["where"] else ""
    way_out = f" ({state['way_out']})" if state["way_out"] else ""
    return f"{state['uid']}{place}: {state['reason']}{way_out}"


class UpgradeJobOperator(CommandOperator):
    """Replace a running job by the job of a file; done when the new version is healthy and its output is released.

    Until then its output is withheld. If it does not become healthy, the old version continues from where it stopped,
    and the task fails without retries, with the reason. Returns `job_id` and `location`: the savepoint of the old
    version. Retried or resumed by another process, the task waits for the upgrade that it has requested.

    `options` are those of `penstock upgrade`: `checkpoints`, `max_restarts`, `deadline`, `target`, `canonical`,
    `from_checkpoint`, `no_rollback`, `accept`, `allow_non_restored_state`, `settings`, and `environment` (variables for
    the job file).
    `on_kill` decides when a user ends the waiting task: `take_back` rolls back to the old version, `keep` lets the
    upgrade continue.
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
        """Take `job`, an id or a name."""
        super().__init__(timeout_seconds=timeout_seconds, **kwargs)
        self.job = job
        self.job_file = job_file
        self.parallelism = parallelism
        self.options = dict(options or {})
        self.job_on_kill = on_kill
        self._kill_action: RollBackUpgrade | None = None

    def perform(self, context: Context) -> Any:
        """Request the upgrade, and wait."""
        if self.job_on_kill not in ("take_back", "keep"):
            raise AirflowFailException(f"on_kill={self.job_on_kill!r}: use take_back or keep")
        attempts = self.attempts(context)
        token = attempts.begin()
        attempts.note(attempts.job_id or self.job_id_of(self.job))
        job_id = attempts.job_id
        self.store_job_link(context, job_id)
        self._kill_action = RollBackUpgrade(job_id, token) if self.job_on_kill == "take_back" else None
        try:
            self.hook.run(lambda client: client.upgrade_status(job_id, token))
        except NotFoundError:
            self._ask(job_id, token)
        return self.wait_for(context, Operation(job_id, token, "upgrade"), when_killed=self._kill_action)

    def on_kill(self) -> None:
        """End the process; roll back if that was requested."""
        self.end_command()
        action = self._kill_action
        if action is not None:
            self.hook.run(lambda client: action.do(client, self.clock, LAST_MS))

    def _ask(self, job_id: str, token: str) -> None:
        head, known = ["upgrade", job_id, self.job_file], {"parallelism": self.parallelism}
        tail = ["--cluster", self.hook.place.url, "--detached", "--token", token]
        self.run_command(head, (known, PARALLELISM), (self.options, UPGRADE), tail=tail)
