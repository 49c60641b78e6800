"""When an embedded run starts its cluster."""

from penstock.client import kernels
from penstock.client.executors import EmbeddedExecutor


def test_a_job_file_is_read_before_kernels_are_compiled(monkeypatch):
    """Its mistakes would show only after the compilation, a minute later."""
    monkeypatch.setattr(kernels, "are_compiled", lambda: False)
    steps = []
    executor = EmbeddedExecutor(on_step=steps.append)
    executor.launch()
    executor.close()
    assert steps == []
