"""Randomness and fresh ids as an injected component; the only module that draws random numbers.

Drivers receive a `Rand`; the simulator passes a `SeededRand` so that a seed reproduces a run.
"""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Rand(Protocol):
    """Random ids and fractions."""

    def token(self, hex_digits: int = 32) -> str:
        """Return a fresh lower-case hex id of `hex_digits` digits."""

    def fraction(self) -> float:
        """Return a float in [0, 1), for jitter."""


class SystemRand:
    """The operating system's randomness."""

    def token(self, hex_digits: int = 32) -> str:
        """Return a fresh lower-case hex id of `hex_digits` digits."""
        return secrets.token_hex((hex_digits + 1) // 2)[:hex_digits]

    def fraction(self) -> float:
        """Return a float in [0, 1)."""
        return secrets.randbits(53) / (1 << 53)


class SeededRand:
    """Reproducible randomness for tests and the simulator."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of `seed`, the same for each instance."""
        self._random = random.Random(seed)

    def token(self, hex_digits: int = 32) -> str:
        """Return the next hex id of the sequence."""
        return f"{self._random.getrandbits(4 * hex_digits):0{hex_digits}x}"

    def fraction(self) -> float:
        """Return the next float in [0, 1)."""
        return self._random.random()
