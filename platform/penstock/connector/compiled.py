"""The kernel compiler (`kernels.compiler.compile`) as part of the SPI, for loops that connectors compile."""

from __future__ import annotations

from penstock.kernels.compiler.compile import Deferred, compiled, intrinsic, kernel, njit, types

__all__ = ["Deferred", "compiled", "intrinsic", "kernel", "njit", "types"]
