"""The committer of `exactly-once-2pc`: ends prepared transactions by their exact identity, from any process.

EndTxn's refusals alone cannot tell "committed before" from "lost"; the marker inside the transaction does.
"""

from __future__ import annotations

from typing import Any

from penstock.connector.sink import CommitOutcome, FileReader
from penstock.core.clock import Clock
from penstock.core.errors import LostTransactionError
from penstock.core.failpoints import hit
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.markers import check_age, marker_of
from penstock_connectors.kafka.metadata import ClusterMetadata
from penstock_connectors.kafka.properties import resolve
from penstock_connectors.kafka.transactions import NotEndableError, OpenTransaction, TransactionAdmin
from penstock_connectors.kafka.two_phase import HELD

_Undecided = list[tuple[Committable, NotEndableError]]


class TransactionCommitter:
    """A `Committer` for `delivery="exactly-once-2pc"`."""

    def __init__(self, config: dict[str, Any], clock: Clock) -> None:
        """Nothing is connected before the first call."""
        self._config, self._clock = config, clock
        self._resolved = resolve(config["bootstrap"], config["properties"])
        self._admin: TransactionAdmin | None = None

    def commit(
        self,
        permit: CommitPermit,
        committables: tuple[Committable, ...],
        read: FileReader,  # noqa: ARG002 - the protocol's
    ) -> tuple[CommitOutcome, ...]:
        """End the transactions, in order.

        Raises:
            LostTransactionError: one can no longer be committed, and never was.
        """
        ended, undecided = self._end(permit, committables)
        for item, _ in undecided:
            # its id may be the next transaction's by now: what lingers under it would hold the marker back
            self._connect().fence([item.transactional_id])
        return self._outcomes(committables, ended, undecided)

    def recover(
        self,
        permit: CommitPermit,
        prefixes: tuple[str, ...],
        committables: tuple[Committable, ...],
        read: FileReader,  # noqa: ARG002 - the protocol's
    ) -> tuple[CommitOutcome, ...]:
        """Commit what the checkpoint names, fence everything under `prefixes`, then decide the rest by the markers."""
        ended, undecided = self._end(permit, committables)
        admin = self._connect()
        admin.fence(admin.ids_under(prefixes))
        return self._outcomes(committables, ended, undecided)

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _end(self, permit: CommitPermit, committables: tuple[Committable, ...]) -> tuple[set[str], _Undecided]:
        ended: set[str] = set()
        undecided: _Undecided = []
        for item in sorted(committables, key=lambda c: (c.run_id, c.subtask, c.checkpoint_id)):
            if item.run_id == permit.run_id and item.checkpoint_id > permit.checkpoint_id:
                msg = f"output of checkpoint {item.checkpoint_id} under a permit for {permit.checkpoint_id}"
                raise ValueError(msg)
            context = {"checkpoint": item.checkpoint_id, "subtask": item.subtask, "chunk": 0, "chunks": 1}
            hit("sink.before_publish", **context)
            detail = item.detail
            transaction = OpenTransaction(item.transactional_id, detail["producer_id"], detail["producer_epoch"])
            try:
                self._connect().commit(transaction)
            except NotEndableError as error:
                undecided.append((item, error))
                continue
            hit("sink.after_commit", **context)
            ended.add(item.id)
            held = HELD.get(item.marker_group)
            if held is not None:
                held.release(item.transactional_id)
        return ended, undecided

    def _outcomes(
        self, committables: tuple[Committable, ...], ended: set[str], undecided: _Undecided
    ) -> tuple[CommitOutcome, ...]:
        if undecided:
            items = [item for item, _ in undecided]
            markers = self._connect().markers({item.marker_group: self._config["topic"] for item in items})
            check_age(items, markers, self._clock.now_ms(), self._retention_ms)
            lost = [
                (item, error)
                for item, error in undecided
                if markers.get(item.marker_group, -1) < marker_of(item.checkpoint_id, 0)
            ]
            if lost:
                raise LostTransactionError(
                    "; ".join(_loss(item, error, markers.get(item.marker_group, -1)) for item, error in lost),
                    hint="restore with --accept-duplicates to go on without these records, or reprocess from an "
                    "older savepoint; a longer transaction_timeout or delivery='exactly-once' avoids it",
                )
        return tuple(
            CommitOutcome(item.id, "published" if item.id in ended else "already-published", item.rows)
            for item in committables
        )

    def _retention_ms(self) -> int | None:
        minutes = ClusterMetadata(self._resolved).broker_setting("offsets.retention.minutes")
        return None if minutes is None else minutes * 60_000

    def _connect(self) -> TransactionAdmin:
        if self._admin is None:
            self._admin = TransactionAdmin(self._resolved)
        return self._admin


def _loss(item: Committable, error: NotEndableError, marker: int) -> str:
    detail = item.detail
    places = ", ".join(detail.get("partitions", []))
    return (
        f"LOST: {item.rows} records of checkpoint {item.checkpoint_id} in {places} "
        f"(transaction {item.transactional_id}, producer {detail['producer_id']} epoch {detail['producer_epoch']}, "
        f"time-out {detail.get('timeout_ms', -1)} ms): {error}; "
        f"the marker {item.marker_group} is at {marker}"
    )
