"""The sink of a backfill: what it stages."""

import msgspec
import pyarrow as pa
from tests.property.pools import pooled
from tests.unit.operators.conftest import Bench

from penstock.backfill.staging import operators_of
from penstock.checkpoint.memory_store import MemoryStore
from penstock.connector.sink import SinkSpec
from penstock.connector.staging import decode_chunk
from penstock.core.elements import Barrier, Batch
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec


def test_staged_rows_do_not_hold_the_pool_of_their_views():
    schema = pa.schema([("v", pa.string_view())])
    sink = SinkSpec(factory="nobody:Sink", config={}, delivery="exactly-once-2pc", schema=schema_to_text(schema))
    store = MemoryStore()
    operator = operators_of(store, "run-")("sink")
    spec = OperatorSpec(uid="out", name="out", kind="sink", config={"sink": msgspec.to_builtins(sink)})
    operator.open(Bench().context(spec, schema))
    column = pooled(["a value of some length"], pa.string_view(), b"pool" * 100_000)
    operator.process_batch(Batch(pa.record_batch([column], schema=schema)), 0, None)
    (committable,) = operator.snapshot(Barrier(1), None).committables
    (file,) = committable.files
    assert file.length < 2000
    assert decode_chunk(store.read(file.path)).to_pydict() == {"v": ["a value of some length"]}
