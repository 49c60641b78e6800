"""Tumbling, sliding and cumulative windows as lists of rows: what the window operator is compared with."""

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import cumulative_windows, is_late, sliding_windows


class Model:
    """Windows as lists of rows; each key has the watermark its subtask had.

    `window` = (size, slide, offset, step of cumulative windows, allowed lateness).
    """

    def __init__(self, key, keys, window, *, values=False):
        *self.window, self.lateness = window
        self.key, self.values = key, values
        self.rows = {}
        self.marks = dict.fromkeys(keys, MIN_TIMESTAMP)

    def name_of(self, row):
        """Return the key of a row."""
        return row[self.key[0]] if len(self.key) == 1 else tuple(row[c] for c in self.key)

    def windows_of(self, time):
        size, slide, offset, step = self.window
        return cumulative_windows(time, step, size, offset) if step else sliding_windows(time, size, slide, offset)

    def add(self, rows):
        """Put rows into their windows; return the late ones, and the windows that come out again."""
        again, late = set(), []
        for row in rows:
            key = self.name_of(row)
            windows, mark = self.windows_of(row[TS_COLUMN]), self.marks[key]
            behind = row[TS_COLUMN] + self.lateness <= mark  # counts where windows leave gaps and the row is in none
            if all(is_late(w, mark, self.lateness) for w in windows) if windows else behind:
                late.append(row)
            takes = [w for w in windows if not is_late(w, mark, self.lateness)]
            for w in takes:
                self.rows.setdefault((w, key), []).append(row)
            again |= {(w, key) for w in takes if is_late(w, mark)}
        return late, [self.result(window, key, self.rows[window, key]) for window, key in again]

    def advance(self, keys, watermark):
        """Return the windows of these keys that fire, in order of windows."""
        fired = []
        for (window, key), rows in sorted(self.rows.items(), key=lambda item: item[0][0].end):
            if key in keys and self.marks[key] < window.max_timestamp <= watermark:
                fired.append(self.result(window, key, rows))
        gone = [(w, k) for w, k in self.rows if k in keys and is_late(w, watermark, self.lateness)]
        self.rows = {place: rows for place, rows in self.rows.items() if place not in gone}
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
        return fired

    def ends(self, keys):
        """Return when the open windows of these keys end."""
        return sorted(w.max_timestamp for w, key in self.rows if key in keys and w.max_timestamp > self.marks[key])

    def result(self, window, key, rows):
        values = [r["v"] for r in rows if r["v"] is not None]
        timed = sorted(((r[TS_COLUMN], r["v"]) for r in rows if r["v"] is not None), key=lambda p: p[0])
        floats = [r["x"] for r in rows]
        latest = max(r[TS_COLUMN] for r in rows)
        mean = sum(floats) / len(floats)
        return {
            **dict(zip(self.key, key if isinstance(key, tuple) else (key,), strict=True)),
            "start": window.start,
            "n": len(rows),
            "values": len(values),
            "total": sum(values) if values else None,
            "least": min(values) if values else None,
            "most": max(floats),
            "mean": sum(values) / len(values) if values else None,
            "var": sum((x - mean) ** 2 for x in floats) / (len(floats) - 1) if len(floats) > 1 else None,
            "first": timed[0][1] if timed else None,
            "last": [r["x"] for r in rows if r[TS_COLUMN] == latest][-1],
            TS_COLUMN: window.max_timestamp,
            **(self.picked(rows) if self.values else {}),
        }

    @staticmethod
    def picked(rows):
        """Return aggregates that are one of the values, of types that have any length."""
        found = {}
        for column in "td":
            timed = sorted([(r[TS_COLUMN], r[column]) for r in rows if r[column] is not None], key=lambda p: p[0])
            values = [value for _, value in timed]
            least, most = (min(values), max(values)) if values else (None, None)
            latest = [v for time, v in timed if time == timed[-1][0]]
            ends = (timed[0][1], latest[-1]) if timed else (None, None)
            names = [f"{fn}_{column}" for fn in ("min", "max", "first", "last")]
            found.update(zip(names, (least, most, *ends), strict=True))
        return found
