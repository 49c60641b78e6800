"""The Iceberg catalog of the unit tests."""

from tests.unit.backfill.conftest import lake  # noqa: F401 - fixtures
