"""The golden jobs from outside: their input, what they must give (computed plainly), backfills, the live job behind."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.api.job_file import planned
from penstock.backfill.histories import TableHistory
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.backfill.table_plan import Offsets
from penstock.connector.staging import decode_chunk
from penstock.core.clock import SystemClock
from penstock.core.rand import SystemRand
from penstock.snapshots.access.opening import open_snapshot
from penstock_connectors.datagen.source import OrderPattern
from penstock_connectors.datagen.source import orders as generated

JOB = Path(__file__).with_name("golden_job.py")
SPLITS, USERS, RATE = 3, 40, 300
#: Key ranges of a backfill by `Golden.command`.
PARTS = 3
SECOND, GAP, NEAR, QUIET = 1_000_000, 150_000, 20_000, 100_000
KINDS = (
    "windows",
    "spread",
    "stages",
    "sessions",
    "join",
    "process",
    "dedup",
    "union",
    "quiet",
    "connect",
    "window-join",
    "temporal",
)
#: Of two sources; and those that give a row as soon as one comes, wherever event time is.
TWO, AT_ONCE = ("join", "union", "connect", "window-join", "temporal"), ("join", "dedup", "union")
START_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Golden:
    """One job with its input."""

    kind: str
    folder: Path
    rows: int = 2_400
    seed: int = 1
    disorder_ms: int = 400
    bound_ms: int = 500

    @property
    def environment(self):
        return {
            "GOLDEN_KIND": self.kind,
            "GOLDEN_ROWS": str(self.rows),
            "GOLDEN_SEED": str(self.seed),
            "GOLDEN_FOLDER": str(self.folder),
            "GOLDEN_DISORDER_MS": str(self.disorder_ms),
            "GOLDEN_BOUND_MS": str(self.bound_ms),
        }

    def command(self, cuts, *options, job=JOB, to="savepoint"):
        """Arguments of an interpreter that backfills up to the cuts, in `PARTS` parts, and prints JSON."""
        until = ",".join(f"{split}={cut}" for split, cut in self.until(cuts)["positions"].items())
        words = ("backfill", str(job), "--to", str(self.folder / to), "--until", until, "--parts", str(PARTS))
        return ["-m", "penstock.cli.main", *words, *options, "--json"]

    def graph(self, monkeypatch):
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return planned(JOB, {}, "")

    def ends(self):
        return [self.rows // SPLITS + (1 if split < self.rows % SPLITS else 0) for split in range(SPLITS)]

    def input(self, cuts=None, seed=None):
        """(user, amount, time in us) of every row before the cuts."""
        found = []
        for split, end in enumerate(self.ends()):
            batch = self.rows_of(split, 0, min(end, cuts[split]) if cuts else end, seed)
            times = batch.column("ts").cast("int64").to_pylist()
            found += zip(batch.column("user_id").to_pylist(), batch.column("amount").to_pylist(), times, strict=True)
        return found

    def rows_of(self, split, low, high, seed=None):
        """Rows `low` to before `high` of one split."""
        pattern = OrderPattern(
            splits=SPLITS, users=USERS, max_amount=100, start_us=START_US, event_rate=RATE,
            disorder_ms=self.disorder_ms, seed=self.seed if seed is None else seed,
        )  # fmt: skip
        return generated(pattern, split, low, high - low)

    def archive(self, ends, uid="orders", *, rand=None, split_of_rows=True):
        """Write each split's rows before `ends` as a table of Parquet files; return it as a backfill is told of it.

        With `rand` rows lie in any order and of any splits in files and row groups; without, a file a split.
        """
        folder = self.folder / f"table-{uid}"
        folder.mkdir(parents=True, exist_ok=True)
        parts = []
        for split, end in enumerate(ends):
            rows = pa.Table.from_batches([self.rows_of(split, 0, end, self.seed + 100 * (uid == "others"))])
            rows = rows.append_column("partition", pa.array([split] * end, pa.int32()))
            parts.append(rows.append_column("offset", pa.array(range(end), pa.int64())))
        if rand is not None:
            both = pa.concat_tables(parts)
            order = list(range(both.num_rows))
            rand.shuffle(order)
            bounds = sorted([0, both.num_rows, *(rand.randrange(both.num_rows + 1) for _ in range(2))])
            parts = [both.take(order[low:high]) for low, high in pairwise(bounds)]
        for number, rows in enumerate(parts):
            kept = rows if split_of_rows else rows.drop_columns(["partition", "offset"])
            pq.write_table(kept, folder / f"part-{number}.parquet", row_group_size=97)
        offsets = Offsets(partition="partition", offset="offset") if split_of_rows else None
        return TableHistory(uid=uid, uris=(str(folder),), offsets=offsets)

    def until(self, cuts):
        """`--until` for cuts by split."""
        sources = ["orders/", "others/"] if self.kind in TWO else [""]
        return {"positions": {f"{uid}orders-{i}": cut for uid in sources for i, cut in enumerate(cuts)}}

    def watermark(self, cuts):
        """How far the live job would be at the cuts."""
        seeds = [self.seed, self.seed + 100] if self.kind in TWO else [self.seed]
        marks = []
        for seed in seeds:
            for split in range(SPLITS):
                only = [cuts[split] if i == split else 0 for i in range(SPLITS)]
                marks.append(max((t for *_, t in self.input(only, seed)), default=None))
        return None if None in marks else min(marks) - self.bound_ms * 1000 - 1

    def expected(self, cuts=None, until=None):
        """Count the rows the job gives of the input before the cuts whose time has come at `until` (None: all)."""
        rows = self.input(cuts)
        return Counter(row for at, row in _MODELS[self.kind](self, rows, cuts) if until is None or at <= until)

    def backfill(self, monkeypatch, engine, cuts, name="savepoint", **options):
        target = str(self.folder / name)
        accept = ("dedup",) if self.kind == "dedup" else ()
        given = BackfillOptions(
            target=target, until=self.until(cuts), **{"parts": 3, "piece_rows": 150, "accept": accept, **options}
        )
        work = Backfill(self.graph(monkeypatch), given, SystemClock(), SystemRand())
        return work.run(engine, lambda *_: None)

    def staged(self, uri, uid="out"):
        """Count the rows of a savepoint's output."""
        snapshot = open_snapshot(uri)
        refs = [ref for output in snapshot.manifest.pending if output.uid == uid for ref in output.files]
        return self.counted(row for ref in refs for row in decode_chunk(snapshot.read(ref)).to_pylist())

    def published(self, uid="out"):
        """Count the rows that the job has published."""
        lines = [line for part in (self.folder / uid).glob("part-*") for line in part.read_text().splitlines()]
        return self.counted(json.loads(line) for line in lines)

    def counted(self, rows):
        return Counter(_shown(self.kind, row) for row in rows)

    def run_live(self, uri=None, limit_s=240):
        """Run the job to the end of its input on an embedded cluster."""
        start = [] if uri is None else ["--from", uri]
        command = [sys.executable, "-m", "penstock.cli.main", "run", str(JOB), *start, "--json"]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=limit_s
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["state"] == "FINISHED"

    def state(self, uid, name=None, uri=None):
        """Return the live rows of one state as a set; of the newest checkpoint unless told."""
        frame = ps.snapshots.read(uri or str(self.folder / "checkpoints" / f"golden-{self.kind}"), uid=uid, name=name)
        return set(frame.collect().rows())


def _us(value):
    """Microseconds of a time in a row: a datetime, or its text in JSON."""
    if isinstance(value, str):
        return pl.Series([value]).str.to_datetime(time_unit="us", time_zone="UTC").cast(pl.Int64).item()
    return int(value.timestamp() * 1_000_000 + 0.5) if hasattr(value, "timestamp") else int(value)


def _shown(kind, row):
    if kind in ("windows", "spread"):
        return row["user_id"], _us(row["window_start"]), row["n"], row["total"]
    if kind == "stages":
        return row["n"], _us(row["window_start"]), row["windows"], row["amount"]
    if kind == "sessions":
        return row["user_id"], _us(row["window_start"]), _us(row["window_end"]), row["n"], row["total"]
    if kind in ("join", "window-join"):
        return row["user_id"], row["amount"], _us(row["ts"]), row["amount_right"], _us(row["ts_right"])
    if kind == "process":
        return row["user_id"], row["second"], row["rows"]
    if kind == "connect":
        return row["user_id"], row["second"], row["rows"], row["others"]
    if kind == "temporal":
        return row["user_id"], row["amount"], _us(row["ts"]), _us(row["ts_right"])
    if kind in ("union", "quiet"):
        return row["user_id"], row["at"], row["before"]
    return row["user_id"], row["amount"], _us(row["ts"])


def _windows(_golden, rows, _cuts):
    found = {}
    for user, amount, at in rows:
        key = user, at // SECOND * SECOND
        n, total = found.get(key, (0, 0))
        found[key] = n + 1, total + amount
    return [(start + SECOND - 1, (user, start, n, total)) for (user, start), (n, total) in found.items()]


def _stages(golden, rows, cuts):
    found = {}
    for closed, (_, start, n, total) in _windows(golden, rows, cuts):
        key = n, start // (2 * SECOND) * 2 * SECOND
        of = found.setdefault(key, [])
        of.append((closed, total))
    return [(start + 2 * SECOND - 1, (n, start, len(of), sum(t for _, t in of))) for (n, start), of in found.items()]


def _sessions(_golden, rows, _cuts):
    found = []
    by_user = {}
    for user, amount, at in sorted(rows, key=lambda row: row[2]):
        sessions = by_user.setdefault(user, [])
        if sessions and at <= sessions[-1][1]:
            first, _, n, total = sessions[-1]
            sessions[-1] = first, at + GAP, n + 1, total + amount
        else:
            sessions.append((at, at + GAP, 1, amount))
    for user, sessions in by_user.items():
        found += [(end - 1, (user, first, end, n, total)) for first, end, n, total in sessions]
    return found


def _join(golden, rows, cuts):
    others = {}
    for user, amount, at in golden.input(cuts, golden.seed + 100):
        others.setdefault(user, []).append((amount, at))
    return [
        (START_US - 1_000 * SECOND, (user, amount, at, other, when))
        for user, amount, at in rows
        for other, when in others.get(user, ())
        if at - NEAR <= when <= at + NEAR
    ]


def _process(_golden, rows, _cuts):
    found = Counter((user, at // SECOND) for user, _, at in rows)
    return [((second + 1) * SECOND - 1, (user, second, n)) for (user, second), n in found.items()]


def _dedup(_golden, rows, _cuts):
    first = {}
    for user, amount, at in sorted(rows, key=lambda row: row[2]):
        first.setdefault(user, (user, amount, at))
    return [(START_US - 1_000 * SECOND, row) for row in first.values()]


def _times(rows):
    found = {}
    for user, _, at in rows:
        found.setdefault(user, []).append(at)
    return {user: sorted(times) for user, times in found.items()}


def _union(golden, rows, cuts):
    both = _times([*rows, *golden.input(cuts, golden.seed + 100)])
    return [
        (at, (user, at, last)) for user, times in both.items() for at, last in zip(times, [0, *times], strict=False)
    ]


def _quiet(_golden, rows, _cuts):
    found = []
    for user, times in _times(rows).items():
        # a timer fires when no row of its own time can come any more
        ends = [at for at, then in zip(times, [*times[1:], 1 << 62], strict=True) if at + QUIET < then]
        found += [(at + QUIET, (user, at + QUIET, at)) for at in ends]
    return found


def _connect(golden, rows, cuts):
    ours, theirs = (
        Counter((user, at // SECOND) for user, _, at in side) for side in (rows, golden.input(cuts, golden.seed + 100))
    )
    return [
        ((second + 1) * SECOND - 1, (user, second, ours[user, second], theirs[user, second]))
        for user, second in ours.keys() | theirs.keys()
    ]


def _window_join(golden, rows, cuts):
    others = {}
    for user, amount, at in golden.input(cuts, golden.seed + 100):
        others.setdefault((user, at // SECOND), []).append((amount, at))
    return [
        ((at // SECOND + 1) * SECOND - 1, (user, amount, at, other, when))
        for user, amount, at in rows
        for other, when in others.get((user, at // SECOND), ())
    ]


def _temporal(golden, rows, cuts):
    versions = _times(golden.input(cuts, golden.seed + 100))
    found = [(row, [then for then in versions.get(row[0], ()) if then <= row[2]]) for row in rows]
    return [(at, (user, amount, at, before[-1])) for (user, amount, at), before in found if before]


_MODELS = {
    "windows": _windows, "stages": _stages, "sessions": _sessions, "join": _join, "process": _process, "dedup": _dedup,
    "union": _union, "quiet": _quiet, "connect": _connect, "window-join": _window_join, "temporal": _temporal,
    "spread": _windows,
}  # fmt: skip
