"""Lambdas that only pick fields of their row, told from those that do more."""

import pytest

from penstock.api.functions.row_functions import Picked, picked_by

OTHER = "k"


async def later(row):
    return row


def each(row):
    yield row


def annotated(row) -> int:
    return row.k


@pytest.mark.parametrize(
    ("function", "picked"),
    [
        (lambda row: row, Picked("row")),
        (lambda row: row.k, Picked("value", ("k",))),
        (lambda row: row["k"], Picked("value", ("k",))),
        (lambda row: (row.a, row["b"]), Picked("tuple", ("a", "b"))),
        (lambda row: (row.a,), Picked("tuple", ("a",))),
    ],
)
def test_what_is_picked(function, picked):
    assert picked_by(function) == picked


@pytest.mark.parametrize(
    "function",
    [
        lambda row: row.a.b,
        lambda row: row.a(),
        lambda row: row.a + row.b,
        lambda row: row[OTHER],
        lambda row: row[0],
        lambda row: (row.a, 1),
        lambda row: (row, row.a),
        lambda row: (row.a, (row.b,)),
        lambda row: row.a if row.b else row.c,
        lambda row: "k",
        lambda row: OTHER,
        lambda row, more: row.k,
        lambda row, more=1: row.k,
        lambda *rows: rows,
        lambda **rows: rows,
        lambda row, *, more=1: row.k,
        later,
        each,
        annotated,
        len,
        "k",
        print,
    ],
)
def test_whatever_does_more_is_not_followed(function):
    assert picked_by(function) is None
