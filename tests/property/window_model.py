"""Tumbling and sliding windows as lists of rows: what the window operator is compared with."""

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import is_late, sliding_windows


class Model:
    """Windows as lists of rows; each key has the watermark its subtask had."""

    def __init__(self, key, keys, window):
        self.key, self.window = key, window
        self.rows = {}
        self.marks = dict.fromkeys(keys, MIN_TIMESTAMP)
        self.late = []

    def copy(self):
        other = Model(self.key, self.marks, self.window)
        other.rows = {k: list(v) for k, v in self.rows.items()}
        other.marks = dict(self.marks)
        return other

    def add(self, row):
        key = tuple(row[c] for c in self.key)
        windows = sliding_windows(row[TS_COLUMN], *self.window)
        if windows and all(is_late(w, self.marks[key]) for w in windows):
            self.late.append(row)
        for w in windows:
            if not is_late(w, self.marks[key]):
                self.rows.setdefault((w.start, key), []).append(row)

    def advance(self, keys, watermark):
        """Return the windows of these keys that fire, in order of windows."""
        fired = []
        for (start, key), rows in sorted(self.rows.items(), key=lambda item: item[0][0]):
            if key in keys and start + self.window[0] - 1 <= watermark:
                fired.append(self.result(start, key, rows))
                del self.rows[start, key]
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
        return fired

    def result(self, start, key, rows):
        values = [r["v"] for r in rows if r["v"] is not None]
        timed = sorted(((r[TS_COLUMN], r["v"]) for r in rows if r["v"] is not None), key=lambda p: p[0])
        floats = [r["x"] for r in rows]
        latest = max(r[TS_COLUMN] for r in rows)
        mean = sum(floats) / len(floats)
        return {
            **dict(zip(self.key, key, strict=True)),
            "start": start,
            "n": len(rows),
            "values": len(values),
            "total": sum(values) if values else None,
            "least": min(values) if values else None,
            "most": max(floats),
            "mean": sum(values) / len(values) if values else None,
            "var": sum((x - mean) ** 2 for x in floats) / (len(floats) - 1) if len(floats) > 1 else None,
            "first": timed[0][1] if timed else None,
            "last": [r["x"] for r in rows if r[TS_COLUMN] == latest][-1],
            TS_COLUMN: start + self.window[0] - 1,
        }
