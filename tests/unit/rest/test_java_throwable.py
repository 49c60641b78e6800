"""The object stream of an error, against the specification's grammar (Flink's client reads it in tests/flink_tools)."""

import base64
import struct

import pytest

from penstock.rest.flink.java_throwable import serialized_throwable


class Reader:
    """Reads a stream of one object, as far as the specification lets it hold what ours does."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0]

    def text(self):
        return self.take(self.number("H"))

    def string(self):
        tag = self.take(1)
        if tag == b"\x70":
            return None
        assert tag in b"\x74\x7c"
        return self.take(self.number("H" if tag == b"\x74" else "Q"))

    def description(self):
        tag = self.take(1)
        if tag == b"\x70":
            return []
        assert tag == b"\x72"
        name, _version, flags = self.text().decode(), self.number("q"), self.number("B")
        fields = []
        for _ in range(self.number("H")):
            kind, field = self.take(1), self.text().decode()
            assert self.string()[:1] == kind
            fields.append(field)
        assert self.take(1) == b"\x78"
        return [(name, flags, fields), *self.description()]

    def object(self):
        assert self.take(5) == b"\xac\xed\x00\x05\x73"
        values = {}
        for _name, flags, fields in reversed(self.description()):
            values |= {field: self.string() for field in fields}
            if flags & 1:
                assert self.take(1) == b"\x78"
        assert self.at == len(self.data)
        return values


@pytest.mark.parametrize("trace", ["", "a\nb", "ä\0ö", "\U0001f600", "x" * 70_000])
def test_what_is_written_is_what_is_read(trace):
    values = Reader(base64.b64decode(serialized_throwable("a.B", "no", trace))).object()
    read = values["fullStringifiedStackTrace"].replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    assert read.encode("utf-16-be", "surrogatepass") == trace.encode("utf-16-be")
    assert b"\0" not in values["fullStringifiedStackTrace"]
    assert (values["detailMessage"], values["originalErrorClassName"]) == (b"no", b"a.B")
    assert [name for name, value in values.items() if value is None] == [
        "cause", "stackTrace", "suppressedExceptions", "serializedException",
    ]  # fmt: skip
