"""The bench of the unit tests."""

from tests.unit.operators.conftest import bench, out  # noqa: F401 - fixtures
