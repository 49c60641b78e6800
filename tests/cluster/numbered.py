"""A job whose output numbers each user's orders, and the check that none is lost or written twice.

Used by the test of the autoscaler.
"""

from collections import Counter, defaultdict

import pyarrow.parquet as pq

from penstock_connectors.datagen.source import OrderPattern, orders

USERS = 50
#: The begin of the job file; the environment and the pipeline follow. `{work}` runs for each row.
BEGIN = """
from collections.abc import Iterator

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Numbered(ps.Schema):
    user_id: int
    number: int


class Number(ps.KeyedProcessFunction):
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Numbered]:
        number = (self.seen.value() or 0) + 1
        self.seen.update(number)
        {work}
        yield Numbered(user_id=row.user_id, number=number)

"""


def check_numbered(folder, count):
    """Check the Parquet files of the output against the first `count` orders, all of one split."""
    numbers = defaultdict(list)
    for part in folder.glob("*.parquet"):
        for row in pq.read_table(part).to_pylist():
            numbers[row["user_id"]].append(row["number"])
    read = orders(OrderPattern(splits=1, users=USERS), 0, 0, count)["user_id"].to_pylist()
    assert Counter(read) == {user: len(found) for user, found in numbers.items()}
    for found in numbers.values():
        assert sorted(found) == list(range(1, len(found) + 1)), "no row twice, none lost, state went along"
