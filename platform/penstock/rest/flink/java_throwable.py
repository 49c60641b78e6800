"""Encodes an error for Flink's Java clients: `org.apache.flink.util.SerializedThrowable` as a Java object stream.

Flink's status of a failed request contains it besides the text, and Flink's command line shows only this. Called by
`rest.flink.documents`; needs no Java, because the stream format is specified.
"""

from __future__ import annotations

import base64
import struct

_MAGIC = b"\xac\xed\x00\x05"
_NULL, _OBJECT, _CLASS, _STRING, _LONG_STRING, _END = b"\x70", b"\x73", b"\x72", b"\x74", b"\x7c", b"\x78"
_SERIALIZABLE, _WRITES_ITSELF = 0x02, 0x01
_TEXT = "Ljava/lang/String;"

#: Name, serialVersionUID, flags and fields (name, type) of the class and its superclasses, most derived first.
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
    """Return the error in base64; clients print `trace`, and `message` as the one-line summary."""
    # The values of the topmost superclass come first; without a Java original the exception has no bytes.
    values = _NULL + _string(message) + _NULL + _NULL + _END
    values += _string(trace) + _string(class_name) + _NULL
    return base64.b64encode(_MAGIC + _OBJECT + _description(0) + values).decode("ascii")


def _description(level: int) -> bytes:
    """Return the description of a class, including those of its superclasses."""
    if level == len(_CLASSES):
        return _NULL
    name, version, flags, fields = _CLASSES[level]
    parts = [_CLASS, _text(name), struct.pack(">qBH", version, flags, len(fields))]
    parts += [kind[:1].encode() + _text(field) + _string(kind) for field, kind in fields]
    return b"".join([*parts, _END, _description(level + 1)])


def _text(text: str) -> bytes:
    """Return a text in Java's modified UTF-8, prefixed by its length."""
    data = _modified(text)
    return struct.pack(">H", len(data)) + data


def _string(text: str) -> bytes:
    data = _modified(text)
    if len(data) < 1 << 16:
        return _STRING + struct.pack(">H", len(data)) + data
    return _LONG_STRING + struct.pack(">Q", len(data)) + data


def _modified(text: str) -> bytes:
    """Return UTF-8 with each surrogate encoded separately and zero as two bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    found = bytearray()
    for (unit,) in struct.iter_unpack(">H", units):
        found += b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")
    return bytes(found)
