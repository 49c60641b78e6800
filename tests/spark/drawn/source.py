"""A source of given rows in numbered splits, for tests that draw their input."""

import base64
from dataclasses import dataclass

import pyarrow as pa

from penstock.connector.source import SourceSpec, SourceSplit
from penstock.core.schema import schema_to_text
from penstock_connectors.generated import RowReader, history

_FACTORY = f"{__name__}:DrawnSourceFactory"


@dataclass(frozen=True)
class DrawnSource:
    """Rows by split; a split may have none."""

    row_schema: pa.Schema
    splits: tuple[pa.RecordBatch, ...]

    def spec(self):
        """Return the source as a value that contains its rows."""
        return SourceSpec(
            factory=_FACTORY,
            config={"splits": [_encoded(rows) for rows in self.splits]},
            schema=schema_to_text(self.row_schema),
            bounded=True,
        )


class DrawnSourceFactory:
    """Makes enumerator and reader from the spec."""

    def create_enumerator(self, spec, *, first_run):
        """Return the enumerator of the splits."""
        del first_run
        return _Splits(len(spec.config["splits"]))

    def create_reader(self, spec, context):
        """Return a reader for one subtask."""
        return RowReader(_Rows(spec), context.clock)

    def validate(self, spec):
        """Check that the rows can be read."""
        _Rows(spec)

    def history(self, spec, until, piece_rows, begin=None):
        """Return the splits up to a position; see `HistoryFactory`."""
        return history(_Rows(spec), self.create_enumerator(spec, first_run=True), (begin, until), piece_rows)


class _Rows:
    def __init__(self, spec):
        self._splits = [_decoded(text) for text in spec.config["splits"]]

    def end(self, split):
        return self._splits[split].num_rows

    def make(self, split, position, count):
        return self._splits[split].slice(position, count)

    def allowed_rows(self, elapsed_ms):
        """Return None: no rate limits the rows."""


class _Splits:
    """Named as the partitions of a `JobHarness`, so that a savepoint's splits are its partitions."""

    def __init__(self, count):
        self._count = count

    def discover(self, known):
        numbers = (number for number in range(self._count) if str(number) not in known)
        return tuple(SourceSplit(id=str(number), state={"index": number, "position": 0}) for number in numbers)

    def close(self):
        """Do nothing."""


def _encoded(rows):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return base64.b64encode(sink.getvalue()).decode()


def _decoded(text):
    table = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))).read_all().combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
