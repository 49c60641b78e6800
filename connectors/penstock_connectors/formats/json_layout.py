"""How `json_encode` describes columns to the compiled pass of `json_writer`: words of 64 bits."""

from __future__ import annotations

#: What a column holds: 64-bit integers, microseconds since 1970, integers 0 and 1, UTF-8, finished JSON.
INTEGER, TIMESTAMP, BOOLEAN, TEXT, JSON = range(5)
#: A layout begins with these words: fields, rows. Behind them come the fields.
HEAD_WORDS = 2
#: Of a field: kind, address and length of what stands before its value (`{"name":` or `,"name":`), address of the
#: values, of the 64-bit offsets of texts, of the validity bitmap (0: no nulls), its first bit, bytes at each end of
#: a finished text that do not belong to it (front * 256 + back), and three words the pass keeps its last time in.
FIELD_WORDS = 11
#: Most bytes a value takes that is no text: an integer with its sign, a time with its quotes.
INTEGER_BYTES, TIMESTAMP_BYTES, LITERAL_BYTES = 20, 34, 5
#: Most bytes one byte of a text becomes.
ESCAPED_BYTES = 6
