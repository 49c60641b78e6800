"""A Kafka broker as the simulation sees it: partitions, transactions with fencing, marker offsets committed with them.

Copies the broker's behaviour that matters to exactly-once: a new epoch per `init_transactions` fences older producers
and aborts their open transaction; records of an open transaction are invisible to read-committed readers and hold
back those behind them; offsets sent to a transaction appear with its commit and with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class FencedError(Exception):
    """The producer's epoch is old."""


class InvalidTransactionError(Exception):
    """The transaction is not what the caller believes."""


@dataclass(slots=True)
class Record:
    """One record; `transaction` is None for plain ones."""

    value: object
    transaction: Transaction | None


@dataclass(slots=True)
class Transaction:
    """One transaction: open, committed or aborted."""

    transactional_id: str
    epoch: int
    state: str = "open"
    offsets: dict[str, int] = field(default_factory=dict)
    records: int = 0


@dataclass(slots=True)
class _Coordinated:
    epoch: int = -1
    transaction: Transaction | None = None


class SimKafka:
    """One broker with as many topics as are written."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[Record]]] = {}
        self.group_offsets: dict[str, int] = {}
        self.up = True
        self.committed = 0
        self.fenced = 0
        self.aborted = 0
        #: Called with every transaction that is about to be committed.
        self.on_commit: Callable[[Transaction], None] = lambda _transaction: None
        self._ids: dict[str, _Coordinated] = {}

    def create_topic(self, topic: str, partitions: int) -> None:
        self.topics[topic] = [[] for _ in range(partitions)]

    def append(self, topic: str, partition: int, value: object) -> None:
        """A plain record, as the idempotent producer of the input writes it."""
        self._check_up()
        self.topics[topic][partition].append(Record(value, None))

    def init_transactions(self, transactional_id: str) -> int:
        """Bump the epoch, abort what was open, return the new epoch."""
        self._check_up()
        held = self._ids.setdefault(transactional_id, _Coordinated())
        if held.transaction is not None and held.transaction.state == "open":
            held.transaction.state = "aborted"
            self.aborted += 1
        if held.epoch >= 0:
            self.fenced += 1
        held.epoch += 1
        held.transaction = None
        return held.epoch

    def begin(self, transactional_id: str, epoch: int) -> None:
        held = self._current(transactional_id, epoch)
        if held.transaction is not None and held.transaction.state == "open":
            raise InvalidTransactionError(f"{transactional_id} has an open transaction")
        held.transaction = Transaction(transactional_id, epoch)

    def produce(self, transactional_id: str, epoch: int, topic: str, partition: int, value: object) -> None:
        transaction = self._open(transactional_id, epoch)
        transaction.records += 1
        self.topics[topic][partition].append(Record(value, transaction))

    def send_offset(self, transactional_id: str, epoch: int, group: str, offset: int) -> None:
        self._open(transactional_id, epoch).offsets[group] = offset

    def commit(self, transactional_id: str, epoch: int) -> None:
        transaction = self._open(transactional_id, epoch)
        self.on_commit(transaction)
        transaction.state = "committed"
        self.group_offsets.update(transaction.offsets)
        self.committed += 1

    def list_transactional_ids(self, prefix: str) -> list[str]:
        self._check_up()
        return sorted(name for name in self._ids if name.startswith(prefix))

    def group_offset(self, group: str) -> int | None:
        """The committed offset; stable only when no open transaction holds a newer one (the caller fences first)."""
        self._check_up()
        return self.group_offsets.get(group)

    def read_committed(self, topic: str) -> list[object]:
        """All visible values of a topic: per partition up to the first open transaction, without aborted ones."""
        values = []
        for partition in self.topics[topic]:
            for record in partition:
                state = "committed" if record.transaction is None else record.transaction.state
                if state == "open":
                    break
                if state == "committed":
                    values.append(record.value)
        return values

    def high_watermark(self, topic: str, partition: int) -> int:
        self._check_up()
        return len(self.topics[topic][partition])

    def fetch(self, topic: str, partition: int, offset: int, limit: int) -> list[object]:
        """Values from `offset` on; the input topic holds plain records only."""
        self._check_up()
        return [record.value for record in self.topics[topic][partition][offset : offset + limit]]

    def _current(self, transactional_id: str, epoch: int) -> _Coordinated:
        self._check_up()
        held = self._ids.get(transactional_id)
        if held is None or held.epoch != epoch:
            raise FencedError(f"{transactional_id} epoch {epoch}, broker has {held.epoch if held else None}")
        return held

    def _open(self, transactional_id: str, epoch: int) -> Transaction:
        transaction = self._current(transactional_id, epoch).transaction
        if transaction is None or transaction.state != "open":
            raise InvalidTransactionError(f"{transactional_id} has no open transaction")
        return transaction

    def _check_up(self) -> None:
        if not self.up:
            raise ConnectionError("the simulated broker is down")
