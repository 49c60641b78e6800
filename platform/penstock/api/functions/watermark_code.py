"""Watermark strategies that are code: an expression or a generator, checked and packed for the source operator.

Imported by `env.from_source` for such strategies only, because it needs Polars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from penstock.api.functions.row_functions import pickled
from penstock.api.functions.watermark_checks import require_time, require_unit
from penstock.core.errors import GraphError
from penstock.graph.validation import require_columns
from penstock.operators.rows.project import output_schema_of, serialize_expressions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.eventtime.strategy import WatermarkStrategy


def pack_code(strategy: WatermarkStrategy, schema: pa.Schema, where: str) -> bytes:
    """Return the payload of a source operator: an expression, or the user's code.

    Raises:
        GraphError: the expression does not fit the rows or is no time, or the code cannot be called or pickled.
    """
    if strategy.kind == "generator":
        if not callable(strategy.code):
            msg = f"{where}: {strategy.code!r} is not a watermark generator's class or factory"
            raise GraphError(msg, hint="give a callable that makes one for each split: for_generator(MyGenerator, ...)")
        return pickled(strategy.code, f"{where}: watermark generator")
    expression = strategy.code
    if isinstance(expression, str):
        require_columns([expression], schema.names, f"{where}: watermarks")
        expression = pl.col(expression)
    if not isinstance(expression, pl.Expr):
        msg = f"{where}: {expression!r} is not a column or an expression"
        raise GraphError(msg, hint="punctuated(timestamp='ts', watermark=pl.when(...).then(pl.col('ts')))")
    require_columns(expression.meta.root_names(), schema.names, f"{where}: watermarks")
    expression = expression.alias("watermark")
    result = output_schema_of("select", [expression], schema)
    require_time(result.field(0).type, "the watermark in the rows", where)
    types = [schema.field(strategy.timestamp).type, result.field(0).type]
    require_unit(strategy, f"column {strategy.timestamp!r} and the watermark are", types, where)
    return serialize_expressions([expression])
