"""Two streams into one operator: what `interval_join`, `join` and `connect` have in common.

Called by `penstock.api.keyed_stream` and its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from penstock.api.call_site import call_site
from penstock.api.flow import Flow
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.stream_graph import StreamNode, Upstream
from penstock.graph.validate import require_name
from penstock.operators.join_schema import SIDES

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream


#: Which rows of a join come out: pairs alone, or also rows of the left side, the right side or both that meet none.
How = Literal["inner", "left", "right", "full"]
#: Under which tag the late rows of a side are put aside.
LateTo: TypeAlias = dict[Literal["left", "right"], str]


def require_partner(stream: DataStream, other: Any, where: str) -> None:
    """Check that another stream can be the second input.

    Raises:
        GraphError: it is no stream, or one of another environment.
    """
    from penstock.api.data_stream import DataStream

    if not isinstance(other, DataStream):
        raise GraphError(f"{where}: {other!r} is not a stream", hint="give the stream to join with")
    if other.environment is not stream.environment:
        msg = f"{where}: the streams belong to different environments"
        raise GraphError(msg, hint="build them from one ps.Environment")


def require_keyed(other: Any, where: str) -> KeyedStream:
    """Return the other stream if it is keyed.

    Raises:
        GraphError: it is not.
    """
    from penstock.api.keyed_stream import KeyedStream

    if not isinstance(other, KeyedStream):
        raise GraphError(f"{where}: the other stream has no key", hint="key it too: other.key_by(...)")
    return other


def append_two_input(
    first: DataStream, second: DataStream, spec: OperatorSpec, schema: pa.Schema, row_type: Any = None
) -> DataStream:
    """Add an operator behind both streams and return its output."""
    from penstock.api.data_stream import DataStream

    spec = msgspec.structs.replace(spec, output_schema=schema_to_text(schema))
    inputs = [
        [(upstream, schema_to_text(stream.flow.schema)) for upstream in stream.flow.upstreams]
        for stream in (first, second)
    ]
    late = spec.config.get("late_to", {})
    sides = {
        late[side]["tag"]: schema_to_text(stream.flow.rows)
        for side, stream in zip(SIDES, (first, second), strict=True)
        if side in late
    }
    made = StreamNode(id=0, operator=spec, where=call_site(), side_outputs=sides)
    node = first.environment.builder.add_two_input(made, *inputs)
    flow = Flow(upstreams=(Upstream(node=node),), schema=schema, row_type=row_type)
    return DataStream(first.environment, flow, node)


def late_config(late_to: LateTo | None, left: DataStream, right: DataStream, where: str) -> dict[str, Any]:
    """Return what the operator is told of late rows.

    Raises:
        GraphError: a side or a tag that cannot be, or one tag for both.
    """
    if not late_to:
        return {}
    sides: Any = late_to
    if not isinstance(sides, dict) or not set(SIDES).issuperset(sides):
        msg = f"{where}: late_to={late_to!r} does not say which side's rows go where"
        raise GraphError(msg, hint='write late_to={"left": "late-orders", "right": "late-payments"}, or one of them')
    for tag in late_to.values():
        require_name(tag, f"{where}: late_to: the tag")
    if len(set(late_to.values())) < len(late_to):
        msg = f"{where}: late_to has one tag for both sides, whose columns differ"
        raise GraphError(msg, hint="give each side a tag of its own")
    columns = {"left": left.flow.rows.names, "right": right.flow.rows.names}
    return {"late_to": {side: {"tag": tag, "columns": columns[side]} for side, tag in late_to.items()}}


def signed_us(duration: str | float, what: str) -> int:
    """Return the microseconds of a duration that may be negative: `"-5s"`, or seconds.

    Raises:
        UsageError: not a duration.
    """
    if isinstance(duration, str) and duration.lstrip().startswith("-"):
        return -1000 * parse_duration_ms(duration.lstrip()[1:], what)
    return 1000 * parse_duration_ms(duration, what)
