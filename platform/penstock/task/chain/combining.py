"""Combining before the shuffle, wired into one subtask: its outgoing edges get combiners, its gate the rows' form.

Called by `task.drive.subtask` when the chain is open, in the subtask's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.network.input_gate import InputGate
    from penstock.network.output import ResultPartition


def combine_outputs(outputs: Iterable[ResultPartition], settings: JobSettings) -> None:
    """Combine where the receiver allows it and rows are split, or come together in the one subtask of all windows.

    Any other single channel would only do the same work twice.
    """
    for output in outputs:
        worth = len(output.channels) > 1 or output.spec.combine.get("of_all", False)
        if output.spec.combine and worth and output.schema is not None and settings.combine != "off":
            from penstock.operators.aggregates.combine import combiner_for

            combiner = combiner_for(output.spec.combine, output.schema, settings)
            if combiner is not None:
                output.combine_with(combiner)


def expect_combined(gate: InputGate | None, head: Any) -> None:
    """Tell the gate what combined rows look like, if the operator at the head of the chain takes any."""
    schema = getattr(head, "combined_schema", None)
    if gate is not None and schema is not None:
        gate.expect_combined(schema)
