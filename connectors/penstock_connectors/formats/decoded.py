"""What every decoder returns: the good rows as one record batch, and each bad payload with its reason.

Made by `json_decode` and `arrow_stream`; read by the source readers, which apply the user's policy for bad records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BadPayload:
    """A payload that is no row of the schema."""

    #: Position in the array given to the decoder.
    index: int
    #: One sentence that names the field, if it is one field's fault.
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one call, in the order of their payloads."""

    rows: pa.RecordBatch
    #: Payload each row comes from; None: row i is payload i and nothing was bad.
    payload_index: np.ndarray[Any, Any] | None = None
    bad: tuple[BadPayload, ...] = ()


class RowError(ValueError):
    """One payload is no row; the text is the reason."""
