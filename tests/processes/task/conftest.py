"""Tasks of the unit tests."""

from tests.unit.task.conftest import batch_of, world  # noqa: F401 - fixtures
