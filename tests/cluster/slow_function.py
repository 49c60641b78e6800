"""A function that is far too slow for its input, as the first lines of a job file: it numbers the orders of a user."""

_TEXT = """
import collections.abc, datetime, time
import penstock as ps

class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime.datetime

class Counted(ps.Schema):
    user_id: int
    amount: int
    number: int

class Slow(ps.KeyedProcessFunction):
    orders: ps.ValueState[int] = ps.value_state()

    def process(self, order: Order, ctx: ps.ProcessContext) -> collections.abc.Iterator[Counted]:
        time.sleep(SECONDS)
        number = (self.orders.value() or 0) + 1
        self.orders.update(number)
        yield Counted(user_id=order.user_id, amount=order.amount, number=number)
"""


def slow_function(seconds):
    """Define `Order`, `Counted` and `Slow`, which takes over so many seconds for each order."""
    return _TEXT.replace("SECONDS", str(seconds))
