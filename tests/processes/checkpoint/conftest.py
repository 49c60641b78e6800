"""The stores of the unit tests."""

from tests.unit.checkpoint.conftest import clock, store  # noqa: F401 - fixtures
