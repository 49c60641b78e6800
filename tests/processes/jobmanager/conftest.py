"""The worlds of the unit tests, for tests that run a JobManager in threads and on sockets."""

from tests.unit.jobmanager.conftest import fake_worker_type, graph_of, store, world_of  # noqa: F401 - fixtures
