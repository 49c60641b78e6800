"""An error as Flink's Java clients read it: an `org.apache.flink.util.SerializedThrowable` in Java's object stream.

Flink's status of a failed request carries one beside the text, and its command line shows nothing else. Called by
`rest.flink.documents`; needs no Java, since the form of the stream is fixed by its specification.
"""

from __future__ import annotations

import base64
import struct

_MAGIC = b"\xac\xed\x00\x05"
_NULL, _OBJECT, _CLASS, _STRING, _LONG_STRING, _END = b"\x70", b"\x73", b"\x72", b"\x74", b"\x7c", b"\x78"
_SERIALIZABLE, _WRITES_ITSELF = 0x02, 0x01
_TEXT = "Ljava/lang/String;"

#: Name, serialVersionUID, flags and fields (name, type) of the class and those it extends, the lowest first.
_CLASSES: tuple[tuple[str, int, int, tuple[tuple[str, str], ...]], ...] = (
    (
        "org.apache.flink.util.SerializedThrowable",
        7284183123441947635,
        _SERIALIZABLE,
        (("fullStringifiedStackTrace", _TEXT), ("originalErrorClassName", _TEXT), ("serializedException", "[B")),
    ),
    ("java.lang.Exception", -3387516993124229948, _SERIALIZABLE, ()),
    (
        "java.lang.Throwable",
        -3042686055658047285,
        _SERIALIZABLE | _WRITES_ITSELF,
        (
            ("cause", "Ljava/lang/Throwable;"),
            ("detailMessage", _TEXT),
            ("stackTrace", "[Ljava/lang/StackTraceElement;"),
            ("suppressedExceptions", "Ljava/util/List;"),
        ),
    ),
)


def serialized_throwable(class_name: str, message: str, trace: str) -> str:
    """Return the error in base64; `trace` is what a client prints, `message` what it says of it in one line."""
    # The values of the highest class come first; an exception without a Java original has no bytes of one.
    values = _NULL + _string(message) + _NULL + _NULL + _END
    values += _string(trace) + _string(class_name) + _NULL
    return base64.b64encode(_MAGIC + _OBJECT + _description(0) + values).decode("ascii")


def _description(level: int) -> bytes:
    """Return the description of a class, with those of what it extends inside."""
    if level == len(_CLASSES):
        return _NULL
    name, version, flags, fields = _CLASSES[level]
    parts = [_CLASS, _text(name), struct.pack(">qBH", version, flags, len(fields))]
    parts += [kind[:1].encode() + _text(field) + _string(kind) for field, kind in fields]
    return b"".join([*parts, _END, _description(level + 1)])


def _text(text: str) -> bytes:
    """Return Java's modified UTF-8 with its length before it."""
    data = _modified(text)
    return struct.pack(">H", len(data)) + data


def _string(text: str) -> bytes:
    data = _modified(text)
    if len(data) < 1 << 16:
        return _STRING + struct.pack(">H", len(data)) + data
    return _LONG_STRING + struct.pack(">Q", len(data)) + data


def _modified(text: str) -> bytes:
    """Return UTF-8 with surrogate pairs one by one and a zero in two bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = bytearray()
    for (unit,) in struct.iter_unpack(">H", units):
        found += b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")
    return bytes(found)
