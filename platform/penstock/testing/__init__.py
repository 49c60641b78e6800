"""Tests of jobs and functions in one process, without servers: rows, watermarks, clocks and crashes by the test.

For the tests of users and of the project.
"""

from penstock.testing.faults import Fault, faults, simulate
from penstock.testing.harness import JobHarness

__all__ = ["Fault", "JobHarness", "faults", "simulate"]
