"""Checkpoints that a user requests: aligned or not as the request says, else as the job's settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg

if TYPE_CHECKING:
    from tests.sim.world import World

    from penstock.jobmanager.master.job_master import JobMaster


class CheckpointRequests:
    """All of a history."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Request -> its choice.
        self._choices: dict[str, bool | None] = {}

    def ask(self) -> bool:
        """Request one; return whether there is a leader to ask."""
        world, leader = self._world, self._world.leader
        if leader is None or leader.dead or leader.master is None:
            return False
        name, overtaking = world.next_name("checkpoint"), world.plan.settings.get("unaligned_checkpoints")
        self._choices[name] = world.random.choice([None, False, True]) if overtaking else None
        event = ev.CheckpointRequested(name, self._choices[name])
        world.scheduler.at(0.1, "checkpoint", lambda: leader.post(event), owner=leader.owner)
        return True

    def answered(self, command: cmd.OperationEnded) -> None:
        """A request has an answer: count the checkpoints among those that succeed."""
        self._world.swarm.seen(
            "requested-checkpoint-written", command.request_id in self._choices and not command.error
        )

    def sent(self, message: msg.TriggerCheckpoint | msg.LetBarriersOvertake, master: JobMaster | None) -> None:
        """A leader tells a worker whether barriers overtake: compare with the request."""
        coordinator = master.checkpointing._coordinator if master is not None else None
        pending = coordinator._pending.get(message.checkpoint_id) if coordinator is not None else None
        choice = self._choices.get(pending.request_id) if pending is not None else None
        if pending is None or choice is None or pending.final:  # all rows are processed before a final one
            return
        overtakes = isinstance(message, msg.LetBarriersOvertake) or message.overtakes
        if overtakes != choice:
            wanted, found = ("unaligned", "aligned") if choice else ("aligned", "unaligned")
            self._world.scheduler.fail(f"{pending.request_id} asked for an {wanted} checkpoint, this one is {found}")
        self._world.swarm.seen("requested-unaligned" if choice else "requested-aligned")
