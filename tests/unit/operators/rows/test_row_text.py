"""Rows and values as text for errors: short, and without secrets."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.core import secrets
from penstock.operators.rows.row_text import batch_text, numbered_row, row_text, timer_text, value_text


class Broken:
    def __repr__(self):
        raise ValueError("no text")


def batch(**columns):
    return pa.record_batch({name: [value] for name, value in columns.items()})


def test_a_row_has_its_columns_in_their_order():
    row = batch(user="a", amount=None, price=Decimal("1.50"), at=datetime(2026, 1, 1, tzinfo=UTC), tags=["x"])
    assert row_text(row, 0, row.schema.names) == (
        "user='a', amount=None, price=1.50, at=2026-01-01 00:00:00+00:00, tags=['x']"
    )
    assert row_text(row, 0, ["price"]) == "price=1.50"
    assert numbered_row(row, 0, ["user"]) == "row 1 of a batch of 1: user='a'"


def test_a_long_value_and_a_wide_row_are_cut():
    row = batch(**{f"text{number}": str(number) * 10_000 for number in range(9)})
    text = row_text(row, 0, row.schema.names)
    assert len(text) < 500
    assert text.startswith(f"text0='{'0' * 99}..., text1='1")
    assert text.endswith("..., and further columns")
    assert len(value_text("x" * 10_000)) < 500


def test_secrets_are_redacted_by_value_and_by_the_columns_name(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", "opensesame" * 20)
    secrets._of_this_process.cache_clear()
    row = batch(note="it is " + "opensesame" * 20, api_token="abcdefgh", password="hunter22", output_tokens=512)
    text = row_text(row, 0, row.schema.names)
    secrets._of_this_process.cache_clear()
    assert text == "note='it is ******', api_token=******, password=******, output_tokens=512"


def test_a_value_whose_text_fails_is_no_second_failure():
    assert value_text(Broken()) == "<Broken whose __repr__ raised ValueError>"


@pytest.mark.parametrize(("rows", "text"), [([], "an empty batch"), ([1, 2], "first row of a batch of 2: n=1")])
def test_a_batch_has_its_size_and_first_row(rows, text):
    assert batch_text(pa.record_batch({"n": pa.array(rows, pa.int64())}), ["n"]) == text


def test_a_timer_has_its_time_and_key():
    assert timer_text(1_767_225_600_000_001, ("a", 1)) == "timer at 2026-01-01 00:00:00.000001, key ('a', 1)"
