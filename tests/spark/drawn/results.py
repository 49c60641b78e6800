"""Results of a drawn job: of a backfill, live, and live from the savepoint of a backfill."""

import random
from collections import Counter
from dataclasses import dataclass

import penstock as ps
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.connector.staging import decode_chunk
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.core.rand import SystemRand
from penstock.snapshots.access.opening import open_snapshot
from penstock.testing import JobHarness


@dataclass(frozen=True)
class Result:
    """The result of a backfill; of a failed one only its reason."""

    failed: str = ""
    #: Savepoint of the backfill.
    uri: str = ""
    rows: Counter | None = None
    keyed: dict | None = None
    #: Positions of the splits and operator state, watermark, numbers of rows.
    told: tuple = ()


def backfilled(drawn, engine, folder, **options):
    """Return the result of a backfill into a folder."""
    given = {"parts": drawn.parts, "piece_rows": drawn.piece_rows, "accept": drawn.accept, **options}
    options = BackfillOptions(target=str(folder), until=drawn.until, **given)
    try:
        made = Backfill(drawn.graph, options, SystemClock(), SystemRand()).run(engine, lambda *_: None)
    except PenstockError as error:
        return Result(failed=_reason(error))
    finally:
        engine.close()
    snapshot = open_snapshot(made.uri)
    manifest = snapshot.manifest
    refs = [(output.uid, ref) for output in manifest.pending for ref in output.files]
    rows = Counter(shown(row, uid) for uid, ref in refs for row in decode_chunk(snapshot.read(ref)).to_pylist())
    names = {(state.uid, state.state) for part in manifest.subtasks for state in part.keyed}
    states = [state for part in manifest.subtasks for state in part.operator]
    told = sorted((state.uid, state.name, repr(state.items)) for state in states if state.name == "splits")
    counts = made.rows_read, made.rows_staged, made.rows_late, made.watermark, repr(made.positions)
    keyed = {name: _state(made.uri, *name) for name in names}
    return Result(uri=made.uri, rows=rows, keyed=keyed, told=(told, counts))


def shown(row, uid=""):
    """Return a row as (name, text) pairs: NaN equals itself, and -0.0 is not 0.0."""
    return (("", uid), *((name, repr(value)) for name, value in row.items()))


def lived(drawn, seed, *, end, begin=None, savepoint=None):
    """Return the rows of a live job: of input from `begin` to the cuts, or with `end` to its end."""
    rand = random.Random(seed)
    partitions = len(drawn.splits["main"])
    parallelism = rand.choice([1, 2])
    with JobHarness(drawn.env, parallelism=parallelism, partitions=partitions, from_savepoint=savepoint) as harness:
        waiting = []
        for name, splits in drawn.splits.items():
            for number, rows in enumerate(splits):
                low = begin[name][number] if begin else 0
                waiting.append((name, number, rows.slice(low, None if end else drawn.cuts[name][number] - low)))
        while waiting:
            place = rand.randrange(len(waiting))
            name, number, rows = waiting.pop(place)
            count = rand.choice([1, 7, 100])
            if rows.num_rows:
                harness.push(name, rows.slice(0, count), partition=number)
                waiting.append((name, number, rows.slice(count)))
        if end:
            harness.end()
        return Counter(shown(row, uid) for uid in harness.sinks for row in harness.table(uid).to_pylist())


def _state(uri, uid, name):
    frame = ps.snapshots.read(uri, uid=uid, name=name).collect()
    return Counter(shown(row) for row in frame.to_dicts())


def _reason(error):
    """Return the type of the innermost error of the product, which all engines have in common."""
    return f"{type(error).__name__}: {error}"
