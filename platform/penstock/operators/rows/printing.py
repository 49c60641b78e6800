"""The end of `stream.print()`: each row as one line on the worker's standard output, which is its log.

`penstock.client.printed` shows those lines again where an embedded job runs.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.operators.operator import Operator
from penstock.operators.rows.columns import without_ts

if TYPE_CHECKING:
    from penstock.core.elements import Batch
    from penstock.operators.operator import Collector, OperatorContext


class PrintOperator(Operator):
    """Writes `<name>> {"column":value,...}`; after a restart rows may be printed again."""

    def open(self, context: OperatorContext) -> None:
        self._names = without_ts(context.input_schemas[0]).names
        self._prefix = f"{context.spec.config['name']}> "

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        rows = batch.data.select(self._names).to_pylist()
        sys.stdout.write("".join(f"{self._prefix}{_line(row)}\n" for row in rows))
        sys.stdout.flush()


def _line(row: dict[str, Any]) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()
