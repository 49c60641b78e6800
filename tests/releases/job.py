"""A job with every kind of state, whose results all come when its input ends. Run with RELEASES_OUT and RELEASES_RATE.

Ends in one stream of (kind, user, text), so that results compare as texts. Never changed once a savepoint of it lies
here: a new kind of state gets a job of its own.
"""

import os
from collections.abc import Iterator

import polars as pl

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

END_US = 1_700_000_000_000_000 + 86_400_000_000


class Line(ps.Schema):
    kind: str | None
    user_id: int
    text: str | None


class Pair(ps.Schema):
    count: int
    largest: int | None


class All(ps.KeyedProcessFunction):
    """Every kind of state of a process function; an event-time timer at the end shows them."""

    number: ps.ValueState[int] = ps.value_state()
    pair: ps.ValueState[Pair] = ps.value_state()
    seen: ps.ValueState[str] = ps.value_state(ttl="36500d")
    amounts: ps.ListState[int] = ps.list_state()
    by_minute: ps.MapState[str, int] = ps.map_state()
    largest: ps.ReducingState[int] = ps.reducing_state(max)

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Line]:
        self.number.update((self.number.value() or 0) + row.amount)
        before = self.pair.value() or Pair(count=0, largest=None)
        self.pair.update(Pair(count=before.count + 1, largest=max(before.largest or 0, row.amount)))
        self.seen.update(max(self.seen.value() or "", f"{row.ts:%T}"))
        self.amounts.append(row.amount)
        minute = f"{row.ts:%M}"
        self.by_minute[minute] = self.by_minute.get(minute, 0) + 1
        self.largest.add(row.amount)
        ctx.timers.event(END_US)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[Line]:
        pair = self.pair.value()
        parts = [self.number.value(), pair.count, pair.largest, self.seen.value(), sum(self.amounts), len(self.amounts)]
        parts += [sorted(self.by_minute.items()), self.largest.get()]
        yield Line(kind="process", user_id=ctx.key, text=repr(parts))


def lines(stream, kind, *columns):
    """Bring a stream to (kind, user, text)."""
    text = pl.concat_str([pl.col(name).cast(pl.String) for name in columns], separator=" ")
    return stream.select(pl.lit(kind).alias("kind"), pl.col("user_id"), text.alias("text"))


def build():
    """Return the environment with the whole job."""
    rate = os.environ.get("RELEASES_RATE")
    env = ps.Environment(parallelism=2, checkpoint_interval="500ms", checkpoint_root="checkpoints")
    monotonic = ps.WatermarkStrategy.monotonic(timestamp="ts")

    def orders(uid, seed, rows):
        source = DatagenSource(
            splits=2, rows=rows, users=20, event_rate=10, seed=seed, rows_per_second=int(rate) if rate else None
        )
        return env.from_source(source, watermarks=monotonic, uid=uid)

    first, second = orders("orders", 0, 2000), orders("payments", 1, 60)
    keyed = first.key_by("user_id")
    day = ps.Tumbling("1d")
    counts = {"n": ps.count(), "total": ps.sum("amount"), "least": ps.min("amount"), "mean": ps.mean("amount")}
    joined = first.join(second).where("user_id").equal_to("user_id").window(day).uid("window-join")
    streams = [
        keyed.process(All()).uid("process"),
        keyed.window(day).apply(whole_window).uid("rows"),
        lines(keyed.window(day).aggregate(**counts).uid("tumbling"), "tumbling", *counts),
        lines(keyed.window(ps.Session("1d")).aggregate(n=ps.count()).uid("session"), "session", "n"),
        lines(joined, "join", "amount", "amount_right"),
        lines(keyed.aggregate(n=ps.count(), total=ps.sum("amount")).uid("running"), "running", "n", "total"),
    ]
    for kind, window in (("sliding", ps.Sliding("1d", "12h")), ("cumulative", ps.Cumulative("12h", "1d"))):
        counted = keyed.window(window).aggregate(n=ps.count()).uid(kind)
        streams.append(lines(counted, kind, "window_end", "n"))
    streams[0].union(*streams[1:]).sink_to(FileSink(os.environ["RELEASES_OUT"], format="jsonl"), uid="out")
    return env


def whole_window(key: int, window, rows: list) -> Iterator[Line]:
    """Show a window that keeps its rows."""
    yield Line(kind="rows", user_id=key, text=repr(sorted(row.amount for row in rows)))


if __name__ == "__main__":
    build().execute("releases")
