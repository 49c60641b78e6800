"""`stream.execute_and_collect()`: runs a bounded job up to one stream and reads its rows; for tests and notebooks."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from penstock.api.call_site import call_site
from penstock.api.executors import current_executor
from penstock.config.settings import failing_at_once
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.regions import endless_sources
from penstock.graph.stream_graph import StreamNode
from penstock.operators.collect import read_collected

if TYPE_CHECKING:
    from penstock.api.data_stream import DataStream


def collect(stream: DataStream, name: str) -> pl.DataFrame:
    """Run the job whose only end is `stream` and return its rows; their order is not defined.

    The rows pass through a folder of this machine, and checkpoints lie in it too: every call starts from nothing.
    The first error of a function of the user's ends the job.

    Raises:
        GraphError: a source is not bounded.
        JobFailedError: it failed.
    """
    environment, where = stream.environment, call_site()
    schema = plain_schema(stream.schema)
    with tempfile.TemporaryDirectory(prefix="penstock-collect-") as folder:
        spec = OperatorSpec(
            uid="collect",
            name="Collect",
            kind="collect",
            config={"folder": f"{folder}/rows", "schema": schema_to_text(schema)},
        )
        end = stream.append_node(StreamNode(id=0, operator=spec, where=where))
        try:
            graph = environment.job_graph(name, only=[end])
        finally:
            environment.builder.remove(end)
        if endless := endless_sources(graph):
            msg = f"{where}: execute_and_collect would never end: {endless[0]} is not bounded"
            raise GraphError(msg, hint="give the source an end (bounded=...), or use .sink_to(...) and env.execute")
        settings = msgspec.structs.replace(failing_at_once(graph.settings), checkpoint_root=f"{folder}/checkpoints")
        current_executor().executor.execute(msgspec.structs.replace(graph, settings=settings))
        return pl.DataFrame(pl.from_arrow(read_collected(f"{folder}/rows", schema)))
