"""Operators on a running job: stop, cancel, rescale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context

from penstock.core.errors import NotFoundError, UsageError
from penstock_airflow import templated
from penstock_airflow.conditions import TERMINAL, InState, Operation
from penstock_airflow.operators.operator import PenstockOperator


class StopJobOperator(PenstockOperator):
    """Stop a job with a savepoint and wait until it has ended; return its `location` and `job_id`.

    `drain` ends event time first: all open windows fire. To continue, submit the job from the location, or just submit
    it (not after a drain).
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "job", "target", "drain", "native")

    def __init__(
        self,
        *,
        job: str,
        target: str | None = None,
        drain: bool | str = False,
        native: bool | str = False,
        **kwargs: Any,
    ) -> None:
        """Take `job`, an id or a name; `target` and `native` as for a savepoint."""
        super().__init__(**kwargs)
        self.native = native
        self.job = job
        self.target = target
        self.drain = drain

    def perform(self, context: Context) -> Any:
        """Request the stop, and wait."""
        attempts = self.attempts(context)
        token = attempts.begin()
        attempts.note(attempts.job_id or self.job_id_of(self.job))
        self.store_job_link(context, attempts.job_id)
        drain, target = templated.flag("drain", self.drain), templated.text(self.target) or None
        native = templated.flag("native", self.native)
        self.hook.run(
            lambda client: client.stop(attempts.job_id, drain=drain, target=target, token=token, native=native)
        )
        return self.wait_for(context, Operation(attempts.job_id, token, "stop"))


class CancelJobOperator(PenstockOperator):
    """Cancel a job and keep its checkpoints; done when it is CANCELED (at once, if it is already).

    `or_ended`: a job that has ended in another way, or does not exist, counts as done too; for clean-up tasks.
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "job")

    def __init__(self, *, job: str, or_ended: bool = False, **kwargs: Any) -> None:
        """Take `job`, an id or a name."""
        super().__init__(**kwargs)
        self.job = job
        self.or_ended = or_ended

    def perform(self, context: Context) -> Any:
        """Cancel, and wait."""
        attempts = self.attempts(context)
        attempts.begin()
        try:
            attempts.note(attempts.job_id or self.job_id_of(self.job))
        except NotFoundError:
            if not self.or_ended:
                raise
            attempts.end()
            return {"job_id": None, "state": None}
        self.store_job_link(context, attempts.job_id)
        wanted = ("CANCELED", *sorted(TERMINAL - {"CANCELED"})) if self.or_ended else ("CANCELED",)
        if self.hook.run(lambda client: client.job(attempts.job_id))["state"] not in wanted:
            self.hook.run(lambda client: client.cancel(attempts.job_id))
        return self.wait_for(context, InState(attempts.job_id, wanted))


class RescaleJobOperator(PenstockOperator):
    """Give a running job another parallelism; done when it runs with that.

    A failed rescale leaves the job as before.

    `parallelism` is for all parts that have the job's own, `vertices` (uid of an operator -> parallelism) for single
    ones.
    """

    template_fields: Collection[str] = (*PenstockOperator.template_fields, "job", "parallelism", "vertices")

    def __init__(
        self,
        *,
        job: str,
        parallelism: int | str | None = None,
        vertices: Mapping[str, int] | str | None = None,
        **kwargs: Any,
    ) -> None:
        """Take at least one of `parallelism` and `vertices`."""
        super().__init__(**kwargs)
        self.job = job
        self.parallelism = parallelism
        self.vertices = vertices

    def perform(self, context: Context) -> Any:
        """Request the rescale, and wait."""
        parallelism = templated.count("parallelism", self.parallelism)
        given = templated.mapping("vertices", self.vertices)
        vertices = {uid: templated.count(f"vertices[{uid!r}]", number) or 0 for uid, number in given.items()}
        if parallelism is None and not vertices:
            raise UsageError("neither parallelism nor vertices are given", hint="set at least one of them")
        attempts = self.attempts(context)
        token = attempts.begin()
        attempts.note(attempts.job_id or self.job_id_of(self.job))
        self.store_job_link(context, attempts.job_id)
        self.hook.run(lambda client: client.rescale(attempts.job_id, parallelism, vertices, token=token))
        return self.wait_for(context, Operation(attempts.job_id, token, "rescale"))
