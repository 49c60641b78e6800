"""Windows that keep their rows, as lists by key: Flink's rules written down once more, without state and timers."""

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.windows import TimeWindow, sliding_windows
from penstock.operators.windows.window_assigners import GLOBAL_WINDOW

MINUTE = 60_000_000
BERLIN = ZoneInfo("Europe/Berlin")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)


class ClockWindow(TimeWindow):
    """A window of the clock in Berlin, in whole minutes."""

    @property
    def max_timestamp(self):
        return self.last


def shown(minute):
    """What the clock shows, as minutes."""
    return round((dt.datetime.fromtimestamp(60 * minute, BERLIN).replace(tzinfo=None) - EPOCH).total_seconds() / 60)


@lru_cache
def clock_window(start, end, near):
    """The window of what the clock shows from `start` on and before `end`, found by looking at all minutes around."""
    minutes = range(near - 24 * 60, near + 24 * 60)
    first = next(m for m in minutes if shown(m) >= start)
    over = next(m for m in minutes if shown(m) >= end)
    window = ClockWindow(first * MINUTE, over * MINUTE)
    window.last = (max(m for m in minutes if shown(m) < end) + 1) * MINUTE - 1
    return window


def zoned_windows(time, size, slide):
    minute = time // MINUTE
    return [clock_window(*w, minute // 360 * 360) for w in sliding_windows(shown(minute), size, slide, 0)]


class Window:
    """A window of one key: rows as (time, value), what the trigger knows, and the times it waits for."""

    def __init__(self):
        self.rows, self.count, self.next, self.last, self.timers = [], 0, None, None, set()


class Model:
    """All windows; `rule` = (trigger, its number, whether it purges, evictor, its number)."""

    def __init__(self, shape, rule, lateness, keys):
        self.shape, self.rule, self.lateness = shape, rule, lateness
        self.windows = {key: {} for key in keys}
        self.marks = dict.fromkeys(keys, MIN_TIMESTAMP)
        self.out, self.late = [], []

    def over(self, window):
        return MAX_TIMESTAMP if window == GLOBAL_WINDOW else window.max_timestamp + self.lateness

    def add(self, key, time, value):
        mine, mark = self.windows[key], self.marks[key]
        kind, *numbers = self.shape
        if kind == "session":
            window = TimeWindow(time, time + numbers[0])
            touched = [w for w in mine if w.start <= window.end and w.end >= window.start]
            window = TimeWindow(min(w.start for w in [window, *touched]), max(w.end for w in [window, *touched]))
            if self.over(window) <= mark:
                self.late.append((key, time, value))
                return
            if touched != [window]:
                self.merge(mine, touched, window, mark)
            self.put(key, window, (time, value))
            return
        if kind == "global":
            windows = [GLOBAL_WINDOW]
        else:
            windows = zoned_windows(time, *numbers) if kind == "zone" else sliding_windows(time, *numbers, 0)
        takes = [w for w in windows if self.over(w) > mark]
        if not takes and (windows or time + self.lateness <= mark):
            self.late.append((key, time, value))
        for window in takes:
            mine.setdefault(window, Window())
            self.put(key, window, (time, value))

    def merge(self, mine, touched, window, mark):
        parts = [mine.pop(w) for w in touched]
        made = mine[window] = Window()
        made.rows = sorted((row for part in parts for row in part.rows), key=lambda row: row[1])
        made.count = sum(part.count for part in parts)
        waiting = [part.next for part in parts if part.next is not None]
        if not parts:
            return
        if self.rule[0] in ("event", "continuous") and window.max_timestamp > mark:
            made.timers.add(window.max_timestamp)
        if waiting:
            made.next = max(waiting) if self.rule[0] == "quiet" else min(*waiting, window.max_timestamp)
            made.timers.add(made.next)

    def put(self, key, window, row):
        known, mark = self.windows[key][window], self.marks[key]
        known.rows.append(row)
        trigger, number, *_ = self.rule
        if trigger in ("event", "continuous"):
            if window.max_timestamp <= mark:
                self.fire(key, window)
                return
            known.timers.add(window.max_timestamp)
            if trigger == "continuous" and known.next is None:
                known.next = min(row[0] - row[0] % number + number, window.max_timestamp)
                known.timers.add(known.next)
        if trigger == "count":
            known.count += 1
            if known.count >= number:
                known.count = 0
                self.fire(key, window)
        if trigger == "quiet":
            known.timers.discard(known.next)
            known.next = row[0] + number
            known.timers.add(known.next)
        if trigger == "delta":
            if known.last is None:
                known.last = row[1]
            elif abs(row[1] - known.last) > number:
                known.last = row[1]
                self.fire(key, window)

    def advance(self, keys, watermark):
        """The watermark goes on; a timer behind that of a key's former subtask waits for it, too."""
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
            while due := sorted(
                [(t, 0, w) for w, known in self.windows[key].items() for t in known.timers if t <= watermark]
                + [(self.over(w), 1, w) for w in self.windows[key] if w != GLOBAL_WINDOW and self.over(w) <= watermark]
            ):
                time, over, window = due[0]
                if over:
                    del self.windows[key][window]
                    continue
                self.timer(key, window, time)

    def timer(self, key, window, time):
        known = self.windows[key][window]
        known.timers.discard(time)
        if self.rule[0] == "quiet":
            known.next = None
            self.fire(key, window)
        elif self.rule[0] == "event" or time == window.max_timestamp:
            self.fire(key, window)
        elif time == known.next:
            known.next = None
            if not (window == GLOBAL_WINDOW and self.marks[key] == MAX_TIMESTAMP):
                known.next = min(time + self.rule[1], window.max_timestamp)
                known.timers.add(known.next)
            self.fire(key, window)

    def fire(self, key, window):
        known = self.windows[key][window]
        _, _, purges, evictor, number = self.rule
        if not known.rows:
            return
        if evictor == "count":
            known.rows = known.rows[-number:]
        elif evictor == "time":
            newest = max(time for time, _ in known.rows)
            known.rows = [row for row in known.rows if row[0] > newest - number]
        self.out.append((key, window.start, window.end, " ".join(str(v) for _, v in known.rows)))
        if evictor == "after":
            known.rows = known.rows[-number:]
        if purges:
            known.rows = []
            if window == GLOBAL_WINDOW and not known.timers and not known.count and known.last is None:
                del self.windows[key][window]
