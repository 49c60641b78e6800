"""Jobs as users write them, run in one thread: real operators, chains and edges, rows encoded as between workers."""

import json

import msgspec
import pyarrow as pa
from tests.unit.operators.conftest import Bench

from penstock.config.settings import JobSettings
from penstock.connector.sink import SinkSpec
from penstock.connector.source import PollResult, SourceBatch, SourceSpec, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.elements import Batch
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.graph.job_graph import Forward
from penstock.graph.task_deployment import ChannelId, OutputChannelSpec, OutputSpec
from penstock.network.output import OutputOptions, ResultPartition
from penstock.operators.registry import create_operator
from penstock.task.chain.chain import Chain, ChainLink

#: What the one source gives, and what the one sink was given.
GIVEN: list[pa.RecordBatch] = []
WRITTEN: list[pa.RecordBatch] = []


class Source:
    def __init__(self, schema, **config):
        self.row_schema, self.config = schema, config

    def spec(self):
        factory, schema = "tests.property.view_jobs:SourceFactory", schema_to_text(self.row_schema)
        return SourceSpec(factory=factory, config=self.config, schema=schema, bounded=True)


class SourceFactory:
    def create_reader(self, spec, context):
        return Reader()


class Reader:
    def __init__(self):
        self.left = list(GIVEN)

    def add_splits(self, splits):
        assert [split.id for split in splits] == ["all"]

    def poll(self, max_rows):
        batches = (SourceBatch(self.left.pop(0), ("all",)),) if self.left else ()
        return PollResult(batches, finished=() if self.left else ("all",))

    def close(self):
        self.left.clear()


class Sink:
    def spec(self, input_schema):
        factory, schema = "tests.property.view_jobs:SinkFactory", schema_to_text(input_schema)
        return SinkSpec(factory=factory, config={}, delivery="none", schema=schema)


class ViewSink(Sink):
    takes_views = True


class SinkFactory:
    def create_writer(self, spec, context):
        return Writer()

    def create_committer(self, spec, context):
        return None


class Writer:
    def write(self, batch):
        batch.validate(full=True)
        WRITTEN.append(batch)

    def prepare_commit(self, checkpoint_id):
        return ()

    def close(self):
        pass


class _Edge:
    """One outgoing edge of a job with one subtask a vertex, or two behind it."""

    def __init__(self, edge, channels, settings):
        ends = tuple(OutputChannelSpec(ChannelId(0, 0, i, 1), "w", "memory:w") for i in range(channels))
        spec = OutputSpec(partitioner=edge.partitioner, schema=edge.schema, channels=ends)
        self.schema = schema_from_text(edge.schema)
        self.partition = ResultPartition(spec, OutputOptions(settings, ManualClock()))
        for channel in self.partition.channels:
            channel.encode_with(lambda rows: rows.serialize())

    def messages(self):
        """What each channel carries."""
        self.partition.flush()
        found = []
        for channel in self.partition.channels:
            channel.attach(lambda: None)
            channel.grant(1 << 40)
            found.append([])
            while (element := channel.poll()) is not None:
                found[-1].append(element)
        return found


def run(graph, given):
    """Run the job on batches of its source; return what was written, and by edge what was sent on it."""
    GIVEN[:], WRITTEN[:] = given, []
    settings = msgspec.structs.replace(JobSettings(), buffer_timeout_ms=100)
    edges = {}
    for vertex in graph.vertices:
        outputs = [edge for edge in graph.edges if edge.source == vertex.id]
        inputs = [edge for edge in graph.edges if edge.target == vertex.id]
        for subtask in range(vertex.parallelism):
            made = []
            for edge in outputs:
                width = next(v.parallelism for v in graph.vertices if v.id == edge.target)
                made.append(_Edge(edge, 1 if isinstance(edge.partitioner, Forward) else width, settings))
                edges.setdefault((edge.source, edge.target), []).append(made[-1])
            chain = _opened(vertex, subtask, inputs, [edge.partition for edge in made])
            _feed(chain, vertex, subtask, [(e, edges[e.source, e.target]) for e in inputs])
            assert chain.finish()
            assert not chain.close()
            for edge in made:
                edge.sent = edge.messages()
    return list(WRITTEN), [edge for found in edges.values() for edge in found]


def _opened(vertex, subtask, inputs, outputs):
    links = [ChainLink(spec=spec, operator=create_operator(spec.kind)) for spec in vertex.operators]
    chain = Chain(links, outputs, ManualClock())
    contexts, schemas = [], tuple(schema_from_text(edge.schema) for edge in inputs)
    for spec in vertex.operators:
        travelled = msgspec.structs.replace(spec, config=json.loads(json.dumps(spec.config)))
        contexts.append(Bench().context(travelled, input_schemas=schemas, subtask=subtask))
        schemas = (schema_from_text(spec.output_schema),) if spec.output_schema else ()
    chain.open(contexts)
    return chain


def _feed(chain, vertex, subtask, inputs):
    if vertex.is_source:
        source = chain.links[0].operator
        splits = [SourceSplit(id="all")] if subtask == 0 else []
        source.add_splits(splits, no_more=True)
        while not source.finished:
            chain.poll(backpressured=False)
        return
    for edge, found in inputs:
        for sent in found:
            channel = sent.sent[0 if isinstance(edge.partitioner, Forward) else subtask]
            for element in channel:
                if element.is_data:
                    chain.batch(Batch(pa.ipc.read_record_batch(element.item, sent.schema)), edge.input_index)
