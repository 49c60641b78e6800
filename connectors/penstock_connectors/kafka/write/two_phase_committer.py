"""The committer of `exactly-once-2pc`: ends prepared transactions by their exact identity, from any process.

EndTxn's refusals alone do not distinguish "committed before" from "lost"; the marker inside the transaction does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.connector.sink import CommitOutcome, FileReader
from penstock.core.clock import Clock
from penstock.core.errors import LostTransactionError
from penstock.core.failpoints import hit
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.client.metadata import marker_retention_ms
from penstock_connectors.kafka.client.properties import resolve
from penstock_connectors.kafka.write.transactions import (
    NotEndableError,
    OpenTransaction,
    TransactionAdmin,
    check_age,
    marker_of,
)
from penstock_connectors.kafka.write.two_phase import PREPARED

#: Number of marker reads for a refused transaction before another one, until it counts as lost.
MARKER_READS = 10
_MARKER_PAUSE_MS = 200


@dataclass(slots=True)
class _Ended:
    """The results of ending transactions."""

    #: Committed just now, by id.
    committed: set[str] = field(default_factory=set)
    #: Refused; the marker decides once no transaction is open.
    undecided: list[tuple[Committable, NotEndableError]] = field(default_factory=list)
    #: Refused, and not covered by the marker at that time.
    lost: list[tuple[Committable, NotEndableError, int]] = field(default_factory=list)


class TransactionCommitter:
    """A `Committer` for `delivery="exactly-once-2pc"`."""

    def __init__(self, config: dict[str, Any], clock: Clock) -> None:
        """Prepare; the first call connects."""
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
        ended = self._end(permit, committables)
        for item, _ in ended.undecided:
            # its id may be reused by the next transaction: an open rest under it would hold back the marker
            self._connect().fence([item.transactional_id])
        return self._outcomes(committables, ended)

    def recover(
        self,
        permit: CommitPermit,
        prefixes: tuple[str, ...],
        committables: tuple[Committable, ...],
        read: FileReader,  # noqa: ARG002 - the protocol's
    ) -> tuple[CommitOutcome, ...]:
        """Commit the checkpoint's transactions, fence everything under `prefixes`, decide the rest by the markers."""
        ended = self._end(permit, committables)
        admin = self._connect()
        admin.fence(admin.ids_under(prefixes))
        return self._outcomes(committables, ended)

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _end(self, permit: CommitPermit, committables: tuple[Committable, ...]) -> _Ended:
        ended = _Ended()
        ordered = sorted(committables, key=lambda c: (c.run_id, c.subtask, c.checkpoint_id))
        for place, item in enumerate(ordered):
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
                if any(later.marker_group == item.marker_group for later in ordered[place + 1 :]):
                    self._decide_by_marker(item, error, ended)
                else:
                    ended.undecided.append((item, error))
                continue
            hit("sink.after_commit", **context)
            ended.committed.add(item.id)
            held = PREPARED.get(item.marker_group)
            if held is not None:
                held.release(item.transactional_id)
        return ended

    def _decide_by_marker(self, item: Committable, error: NotEndableError, ended: _Ended) -> None:
        """Decide by the marker before a later transaction moves it, which would hide that this one was lost.

        A later open transaction holds back a stable marker, so the committed one is read. A commit of an instant ago
        may not show, so the marker is read again.
        """
        markers: dict[str, int] = {}
        for attempt in range(MARKER_READS):
            if attempt:
                self._clock.sleep_ms(_MARKER_PAUSE_MS)
            markers = self._connect().markers({item.marker_group: self._config["topic"]}, stable=False)
            if markers.get(item.marker_group, -1) >= marker_of(item.checkpoint_id, 0):
                return
        check_age([item], markers, self._clock.now_ms(), partial(marker_retention_ms, self._resolved))
        ended.lost.append((item, error, markers.get(item.marker_group, -1)))

    def _outcomes(self, committables: tuple[Committable, ...], ended: _Ended) -> tuple[CommitOutcome, ...]:
        lost = list(ended.lost)
        if ended.undecided:
            items = [item for item, _ in ended.undecided]
            markers = self._connect().markers({item.marker_group: self._config["topic"] for item in items})
            check_age(items, markers, self._clock.now_ms(), partial(marker_retention_ms, self._resolved))
            lost += [
                (item, error, markers.get(item.marker_group, -1))
                for item, error in ended.undecided
                if markers.get(item.marker_group, -1) < marker_of(item.checkpoint_id, 0)
            ]
        if lost:
            raise LostTransactionError(
                "; ".join(_loss(*each) for each in lost),
                hint="restore with --accept-duplicates to continue without these records, or reprocess from "
                "an older savepoint; a longer transaction_timeout or delivery='exactly-once' avoids it",
            )
        return tuple(
            CommitOutcome(item.id, "published" if item.id in ended.committed else "already-published", item.rows)
            for item in committables
        )

    def _connect(self) -> TransactionAdmin:
        if self._admin is None:
            self._admin = TransactionAdmin(self._resolved)
        return self._admin


def _loss(item: Committable, error: NotEndableError, marker: int) -> str:
    detail = item.detail
    places = ", ".join(detail.get("partitions", []))
    return (
        f"LOST: {item.rows} records of checkpoint {item.checkpoint_id} in {places} "
        f"(sink {item.uid!r}, transaction {item.transactional_id}, producer {detail['producer_id']} "
        f"epoch {detail['producer_epoch']}, time-out {detail.get('timeout_ms', -1)} ms): {error}; "
        f"the marker {item.marker_group} is at {marker}"
    )
