"""What counts as a whole number in a question: digits that `int` takes, and not too many of them."""

import pytest

from penstock.core.errors import UsageError
from penstock.rest.flink.request_fields import is_count
from penstock.rest.jobs.metric_routes import chosen_subtasks
from penstock.rest.jobs.operation_routes import _count, _vertices


def test_counts():
    assert [text for text in ("0", "007", "15", "", "-1", "1.5", "²", "٣", "9" * 5000) if is_count(text)] == [
        "0", "007", "15",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["²", "9" * 5000])
def test_routes_say_what_is_no_number(text):
    for ask in (
        lambda: _vertices(f"totals={text}"),
        lambda: _count({"checkpoints": text}, "checkpoints", 3),
        lambda: chosen_subtasks(None, f"0-{text}"),
    ):
        with pytest.raises(UsageError):
            ask()
