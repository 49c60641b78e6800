"""Compiled loops over librdkafka's messages: copy their data, then free them; without the interpreter lock.

Used by `fetch_fast` only. Everything is compiled or loaded from the disk cache at import; workers call `warm()` for
that.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding

from penstock.connector.compiled import types
from penstock_connectors.formats.memory import byte, compiled, copy, put_byte, put_word, word
from penstock_connectors.kafka.client.librdkafka import LIBRARY, MESSAGE_BYTES

_I = types.int64
for _name in ("rd_kafka_message_timestamp", "rd_kafka_message_destroy"):
    # by name, so that the compiled code stays valid in the disk cache
    llvmlite.binding.add_symbol(_name, ctypes.cast(LIBRARY[_name], ctypes.c_void_p).value)
_timestamp: Any = types.ExternalFunction("rd_kafka_message_timestamp", types.int64(types.int64, types.int64))
_destroy: Any = types.ExternalFunction("rd_kafka_message_destroy", types.void(_I))
_BYTES = MESSAGE_BYTES


def _structs(messages: int, count: int, target: int, times: int, scratch: int) -> int:
    """Copy the structs of `count` messages; with `times`, also their timestamps; return how many have an error."""
    errors = 0
    for i in range(count):
        message = word(messages + 8 * i)
        copy(target + _BYTES * i, message, _BYTES)
        if (word(message) & 0xFFFFFFFF) != 0:
            errors += 1
        elif times != 0:
            put_word(times + 8 * i, _timestamp(message, scratch))
    return errors


def _gather(structs: int, count: int, field: int, offsets: int, target: int) -> int:
    """Copy a field (its byte position in the struct: address, then size) of every message; return the bytes."""
    at = 0
    for i in range(count):
        put_word(offsets + 8 * i, at)
        source, size = word(structs + _BYTES * i + field), word(structs + _BYTES * i + field + 8)
        if source != 0 and size > 0:
            copy(target + at, source, size)
            at += size
    put_word(offsets + 8 * count, at)
    return at


def _positions(structs: int, count: int, slots: int, ends: int) -> int:
    """Write for each slot (split) the offset after its last message; `slots` holds each message's slot. Returns 0."""
    for i in range(count):
        slot = word(slots + 8 * i)
        put_word(ends + 8 * slot, word(structs + _BYTES * i + 56) + 1)
    return 0


def _free(messages: int, count: int) -> int:
    """Return the messages to librdkafka; return how many."""
    for i in range(count):
        _destroy(word(messages + 8 * i))
    return count


def _valid(structs: int, count: int, field: int, bits: int) -> int:
    """Write Arrow's validity bits of one field (null pointer = null) to zeroed `bits`; return the number of nulls."""
    nulls = 0
    for i in range(count):
        if word(structs + _BYTES * i + field) == 0:
            nulls += 1
        else:
            put_byte(bits + (i >> 3), byte(bits + (i >> 3)) | (1 << (i & 7)))
    return nulls


structs = compiled(_I(_I, _I, _I, _I, _I), _structs)
gather = compiled(_I(_I, _I, _I, _I, _I), _gather)
positions = compiled(_I(_I, _I, _I, _I), _positions)
free = compiled(_I(_I, _I), _free)
valid = compiled(_I(_I, _I, _I, _I), _valid)


def warm() -> None:
    """Load all loops; an empty call of each also resolves its symbols."""
    structs(0, 0, 0, 0, 0)
    positions(0, 0, 0, 0)
    free(0, 0)
