"""The network memory of a TaskManager: a guaranteed part of each slot, and a shared part that is lent to workers; pure.

A worker has its guaranteed part from its start to its end. It tells what its input gates would use (`NetworkNeed`), and
gets the rest of it, or its proportion of the shared part, as a loan. Loans are divided again when a need changes or a
worker ends. A smaller loan counts in full until the worker's gates keep to it; only then others get it. So guaranteed
parts and loans never exceed the network memory, however long a message or a blocked gate takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.rpc.messages import NetworkNeed, NetworkShare


@dataclass(slots=True)
class _Loan:
    #: The bytes that the worker needs beyond its guaranteed part.
    wanted_bytes: int = 0
    #: The newest loan that it knows, and its number.
    told_bytes: int = 0
    number: int = 0
    #: The most that it may still use.
    held_bytes: int = 0


class NetworkPool:
    """Lends the shared part; each call returns the shares to send, in this order."""

    def __init__(self, network_bytes: int, slots: int) -> None:
        """Guarantee half of the memory in equal parts; all of it where there are no slots to share it."""
        self.guaranteed_bytes = network_bytes // slots // (2 if slots > 1 else 1) if slots else 0
        self.shared_bytes = network_bytes - self.guaranteed_bytes * slots
        self._loans: dict[str, _Loan] = {}

    @property
    def lent_bytes(self) -> int:
        """The shared memory that workers may use."""
        return sum(loan.held_bytes for loan in self._loans.values())

    def needs(self, worker_id: str, need: NetworkNeed) -> list[tuple[str, NetworkShare]]:
        """Take what a worker needs, and what its gates keep to."""
        loan = self._loans.setdefault(worker_id, _Loan())
        loan.wanted_bytes = max(0, need.needed_bytes - self.guaranteed_bytes)
        if need.number == loan.number:
            loan.held_bytes = loan.told_bytes
        return self._divided()

    def ended(self, worker_id: str) -> list[tuple[str, NetworkShare]]:
        """Take back the loan of a worker whose process has ended."""
        return [] if self._loans.pop(worker_id, None) is None else self._divided()

    def _divided(self) -> list[tuple[str, NetworkShare]]:
        wanted = sum(loan.wanted_bytes for loan in self._loans.values())
        shares = []
        for worker_id, loan in self._loans.items():
            part = loan.wanted_bytes
            if wanted > self.shared_bytes:
                part = self.shared_bytes * loan.wanted_bytes // wanted
            most = loan.held_bytes + self.shared_bytes - self.lent_bytes
            if (told := min(part, most)) != loan.told_bytes:
                loan.told_bytes, loan.held_bytes = told, max(loan.held_bytes, told)
                loan.number += 1
                total = self.guaranteed_bytes + told
                shares.append((worker_id, NetworkShare(number=loan.number, total_bytes=total)))
        return shares
