"""Combining before the shuffle in one subtask: combiners on its outgoing edges, the rows' layout on its gate.

Called by `task.drive.subtask` when the chain is open, in the subtask's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.network.input_gate import InputGate
    from penstock.network.output import ResultPartition


def combine_outputs(outputs: Iterable[ResultPartition], settings: JobSettings) -> None:
    """Add combiners where the receiver allows it and rows are distributed, or meet in the one subtask of all windows.

    With any other single channel, combining would only repeat the receiver's work.
    """
    for output in outputs:
        worth = len(output.channels) > 1 or output.spec.combine.get("of_all", False)
        if output.spec.combine and worth and output.schema is not None and settings.combine != "off":
            from penstock.operators.aggregates.combine import combiner_for

            combiner = combiner_for(output.spec.combine, output.schema, settings)
            if combiner is not None:
                output.combine_with(combiner)


def expect_combined(gate: InputGate | None, head: Any) -> None:
    """Set the layout of combined rows on the gate, if the operator at the head of the chain accepts any."""
    schema = getattr(head, "combined_schema", None)
    if gate is not None and schema is not None:
        gate.expect_combined(schema)
