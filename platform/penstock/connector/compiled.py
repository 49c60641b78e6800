"""What connectors compile their own loops with: the kernels' one way (`kernels.compile`), as part of the SPI."""

from __future__ import annotations

from penstock.kernels.compile import compiled, intrinsic, kernel, njit, types
from penstock.kernels.deferred import Deferred

__all__ = ["Deferred", "compiled", "intrinsic", "kernel", "njit", "types"]
