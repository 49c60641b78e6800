"""The result of a decoder: good rows as one record batch, and each bad payload with its error.

Made by `json_decode` and `arrow_stream`; read by the source readers, which apply the user's policy for bad records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.secrets import redacted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


#: Characters of a bad record that its error shows; bytes that are no UTF-8 count as one each.
_SHOWN = 80
#: Bytes of a bad record that are searched for secrets.
_SEARCHED_BYTES = 1 << 16


def excerpt(payload: bytes | None) -> str:
    """Return the beginning of a bad record as text for an error, without secrets."""
    if payload is None:
        return "null"
    # the escapes return to the same bytes
    text = payload[:_SEARCHED_BYTES].decode(errors="surrogateescape")
    shown, whole = redacted(text, _SHOWN), redacted(text, _SHOWN + 1)
    return repr(shown.encode(errors="surrogateescape")) + ("..." if shown != whole else "")


@dataclass(frozen=True, slots=True)
class BadPayload:
    """A payload that is not a row of the schema."""

    #: Position in the decoder's input array.
    index: int
    #: One sentence, which names the field if a single one is at fault.
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one call, in the order of their payloads."""

    rows: pa.RecordBatch
    #: Payload index of each row; None: row i is payload i, and no payload was bad.
    payload_index: np.ndarray[Any, Any] | None = None
    bad: tuple[BadPayload, ...] = ()


class RowError(ValueError):
    """A payload is not a row; the text is the reason."""
