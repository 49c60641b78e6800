"""Tests of jobs and functions in one process, without servers: rows, watermarks, clocks and crashes by the test.

For the tests of users and of the project. Names are loaded on first use, because pytest imports this package for its
plugin even if no test uses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.fault_plan import Fault as Fault
    from penstock.testing.fault_plan import faults as faults
    from penstock.testing.fault_search import simulate as simulate
    from penstock.testing.harness import JobHarness as JobHarness

_MODULES = {"Fault": "fault_plan", "JobHarness": "harness", "faults": "fault_plan", "simulate": "fault_search"}
__all__ = ["Fault", "JobHarness", "faults", "simulate"]


def __getattr__(name: str) -> Any:
    """Load a name on first use."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"penstock.testing.{_MODULES[name]}"), name)
    msg = f"penstock.testing has no {name!r}; there are: {', '.join(__all__)}"
    raise AttributeError(msg)
