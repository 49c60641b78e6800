"""Running aggregates and deduplication in plain Python, with and without a time-to-live."""

import math

from penstock.core.elements import TS_COLUMN

FUNCTIONS = ("count", "sum", "min", "max", "mean", "var", "std", "first", "last")
AGGREGATES = [("n", "count", None), *((f"{fn}_{c}", fn, c) for c in "vx" for fn in FUNCTIONS)]
_PICKS = ("count", "min", "max", "first", "last")
VALUES = [("total", "sum", "v"), *((f"{fn}_{c}", fn, c) for c in "tdb" for fn in _PICKS)]


def aggregate(fn, rows, column):
    """One aggregate of a key's rows so far, as SQL defines it."""
    if column is None:
        return len(rows)
    rows = [r for r in rows if r[column] is not None]
    values = [r[column] for r in rows]
    if fn == "count":
        return len(values)
    if not values:
        return None
    if fn in ("first", "last"):
        times = [r[TS_COLUMN] for r in rows]
        return values[times.index(min(times))] if fn == "first" else values[-1 - times[::-1].index(max(times))]
    if fn in ("var", "std"):
        if len(values) < 2:
            return None
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
        return variance if fn == "var" else math.sqrt(variance)
    return {"sum": sum, "min": min, "max": max, "mean": lambda v: sum(v) / len(v)}[fn](values)


class Plain:
    """What is known of every key that has had a row, and for how long."""

    def __init__(self, key):
        self.key, self.held = key, {}

    #: The clock, in milliseconds, and the time-to-live.
    now, ttl_ms = 0, None

    def expires(self, ttl_ms):
        """Let keys begin anew when they had no row for so long."""
        self.ttl_ms, self.times, self.seen = ttl_ms, {}, {}
        self.config["ttl"] = {"duration_us": ttl_ms * 1000, "on_read": False, "return_expired": False}
        return self

    def name_of(self, row):
        return tuple(row[c] for c in self.key)

    def alive(self, name, now):
        return name in self.held and (self.ttl_ms is None or self.times[name] + self.ttl_ms > now)

    def at(self, name):
        """A row of a key comes now."""
        if name in self.held and not self.alive(name, self.now):
            self.forget(name)

    def forget(self, name):
        del self.held[name], self.times[name]

    def put(self, name, held):
        self.held[name] = held
        if self.ttl_ms is not None:
            self.times[name] = self.now

    def looked_at(self, names):
        """Whoever has these keys may have removed by now what has expired."""
        if self.ttl_ms is not None:
            self.seen |= dict.fromkeys(names, self.now)


class Running(Plain):
    """Every row comes out with its key's aggregates."""

    kind = "running_aggregate"

    def __init__(self, key, aggregates=AGGREGATES):
        super().__init__(key)
        self.aggregates = aggregates
        self.config = {
            "key": list(key),
            "aggregates": [{"alias": alias, "fn": fn, "column": column} for alias, fn, column in aggregates],
        }

    def add(self, row):
        name = self.name_of(row)
        self.at(name)
        rows = [*self.held.get(name, ()), row]
        self.put(name, rows)
        key = {c: row[c] for c in self.key}
        return [{**key, **{n: aggregate(fn, rows, c) for n, fn, c in self.aggregates}, TS_COLUMN: row[TS_COLUMN]}]


class Kept(Plain):
    """A row comes out when it takes its key's place."""

    kind = "deduplicate"

    def __init__(self, key, keep, by):
        super().__init__(key)
        self.keep, self.by = keep, by
        self.config = {"key": list(key), "keep": keep, "by": by}

    def add(self, row):
        name, order = self.name_of(row), row[self.by or TS_COLUMN]
        order = -math.inf if order is None else order
        self.at(name)
        old = self.held.get(name)
        if old is not None and (order < old if self.keep == "last" else order >= old):
            return []
        self.put(name, order)
        return [row]
