"""A table in the place of a history's first part: what it must hold, where the source takes over, what is refused."""

from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.golden import Golden

import penstock as ps
from penstock.backfill.engine import LocalEngine
from penstock.backfill.histories import HistoryBounds, TableHistory, histories
from penstock.backfill.run import Backfill, BackfillOptions
from penstock.backfill.table_plan import Offsets, open_table, require_next
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.errors import ConnectorError, UsageError
from penstock.core.rand import SystemRand
from penstock.operators.rows.columns import ColumnError
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import DatagenSourceFactory, OrderPattern, orders
from penstock_connectors.files import FileSink

OFFSETS = Offsets(partition="partition", offset="offset")
CUTS = (50, 60, 70)


@pytest.fixture
def golden(tmp_path):
    return Golden("windows", tmp_path, rows=300)


def archived(golden, split, low, high):
    rows = pa.Table.from_batches([golden.rows_of(split, low, high)])
    rows = rows.append_column("partition", pa.array([split] * (high - low), pa.int32()))
    return rows.append_column("offset", pa.array(range(low, high), pa.int64()))


def table(golden, parts, name="table", **options):
    """Write tables as the files of one folder; return it as a backfill is told of it."""
    for place, rows in parts.items():
        path = golden.folder / name / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, row_group_size=20, **options)
    return TableHistory(uid="orders", uris=(str(golden.folder / name),), offsets=OFFSETS)


def whole(golden, ends=(40, 40, 40)):
    return {split: archived(golden, split, 0, end) for split, end in enumerate(ends)}


def look(golden, monkeypatch, declared, *, until=None, cut_over=None, piece_rows=30):
    cut = HistoryBounds(until=until or golden.until(CUTS), cut_over=cut_over or {}, piece_rows=piece_rows)
    (found,) = histories(golden.graph(monkeypatch), cut, (declared,)).values()
    return found


def begins(found):
    return [split.begin for split in found.splits]


def test_the_source_takes_over_behind_the_table_s_last_offset(golden, monkeypatch):
    found = look(golden, monkeypatch, table(golden, whole(golden, (40, 0, 70))))
    assert begins(found) == [40, 0, 70], "a partition without rows begins at its beginning"
    assert found.tables == {"orders-0": (0, 40), "orders-2": (0, 70)}


def test_what_both_have_is_read_once(golden, monkeypatch):
    positions = {"positions": {"orders-0": 10, "orders-2": 5}}
    found = look(golden, monkeypatch, table(golden, whole(golden)), cut_over=positions)
    assert begins(found) == [10, 40, 5]
    assert found.tables == {"orders-0": (0, 10), "orders-1": (0, 40), "orders-2": (0, 5)}


def test_a_table_alone(golden, monkeypatch):
    found = look(golden, monkeypatch, table(golden, whole(golden, (40, 41, 42))), until={"begin": True})
    assert [split.rest.state["position"] for split in found.splits] == [40, 41, 42]
    assert all(piece.source is not None or piece.empty for piece in found.pieces)


def started(monkeypatch, position):
    """Have the job start at a position: before it the topic has nothing, or nothing that the job is to read."""
    whole_history = DatagenSourceFactory.history

    def history(self, spec, until, piece_rows, begin=None):
        found = whole_history(self, spec, until, piece_rows, begin)
        return found if begin is not None else tuple(replace(s, begin=position, start=position) for s in found)

    monkeypatch.setattr(DatagenSourceFactory, "history", history)


@pytest.mark.parametrize("start", [25, 33])
def test_a_history_may_begin_anywhere_up_to_where_the_job_would_start(golden, monkeypatch, start):
    started(monkeypatch, start)
    declared = table(golden, {0: archived(golden, 0, 25, 40)})
    assert look(golden, monkeypatch, declared).tables == {"orders-0": (25, 40)}


@pytest.mark.parametrize("cut_over", [None, {"positions": {"orders-0": 28}}, {"positions": {"orders-0": 25}}])
def test_a_table_that_begins_behind_where_the_job_would_start_leaves_a_gap(golden, monkeypatch, cut_over):
    started(monkeypatch, 24)
    declared = table(golden, {0: archived(golden, 0, 25, 40)})
    with pytest.raises(UsageError, match=r"offsets 24 to 24 of 'orders-0', where the job starts, are not in its table"):
        look(golden, monkeypatch, declared, cut_over=cut_over)
    sparse = TableHistory(uid="orders", uris=declared.uris, offsets=OFFSETS, sparse=True)
    assert begins(look(golden, monkeypatch, sparse, cut_over=cut_over))[1:] == [0, 0]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(0, 0, 20), (0, 25, 40)], "partition 0 has a gap: offsets 20 to 24 are missing"),
        ([(1, 0, 20), (1, 19, 40)], "partition 1 has offset 19 twice"),
        ([(3, 0, 20)], "has rows of partition 3, which the source does not have"),
        ([(0, 0, 120)], "position 120 of 'orders-0' is after its end at 100"),
    ],
)
def test_what_does_not_go_together_is_refused(golden, monkeypatch, parts, says):
    files = {number: archived(golden, *part) for number, part in enumerate(parts)}
    with pytest.raises(UsageError, match=says):
        look(golden, monkeypatch, table(golden, files))


def test_a_cut_over_behind_the_end_of_the_table_is_a_gap(golden, monkeypatch):
    declared = table(golden, whole(golden))
    with pytest.raises(UsageError, match=r"'orders-1' takes over at 45.*offsets 40 to 44 are in neither"):
        look(golden, monkeypatch, declared, cut_over={"positions": {"orders-1": 45}})
    sparse = TableHistory(uid="orders", uris=declared.uris, offsets=OFFSETS, sparse=True)
    assert begins(look(golden, monkeypatch, sparse, cut_over={"positions": {"orders-1": 45}})) == [40, 45, 40]


def test_a_gap_and_a_repetition_that_make_up_for_each_other_are_found_when_rows_are_read(golden, monkeypatch):
    parts = {0: archived(golden, 0, 0, 20), 1: archived(golden, 0, 20, 40), 2: archived(golden, 0, 30, 31)}
    parts[1] = parts[1].filter(pa.compute.not_equal(parts[1]["offset"], 25))
    declared = table(golden, parts)
    assert look(golden, monkeypatch, declared).tables == {"orders-0": (0, 40)}
    with pytest.raises(UsageError, match="partition 0 has offset 30 twice"):
        golden.backfill(monkeypatch, LocalEngine(), CUTS, tables=(declared,))


def test_holes_are_taken_from_who_knows_of_them(golden, monkeypatch):
    rows = archived(golden, 0, 0, 40)
    rows = rows.filter(pa.compute.not_equal(pa.compute.bit_wise_and(rows["offset"], 3), 3))
    declared = table(golden, {0: rows})
    sparse = TableHistory(uid="orders", uris=declared.uris, offsets=OFFSETS, sparse=True)
    made = golden.backfill(monkeypatch, LocalEngine(), CUTS, tables=(sparse,))
    # offset 39 is a hole too: nobody but the source tells, and it has the row
    assert made.rows_read == sum(CUTS) - 9
    assert made.tables == {"orders": {"orders-0": (0, 39)}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop_columns(["amount"]), "has no column 'amount'"),
        (lambda t: t.drop_columns(["offset"]), "has no column 'offset'"),
        (
            lambda t: t.set_column(1, "amount", t["amount"].cast(pa.string())),
            "column 'amount' is string, but int64 in the source",
        ),
        (lambda t: t.set_column(2, "ts", t["ts"].cast(pa.int64())), r"column 'ts' is int64, but timestamp"),
        (
            lambda t: t.set_column(4, "offset", t["offset"].cast(pa.float64())),
            "column 'offset' is double instead of an integer",
        ),
    ],
)
def test_other_columns_are_refused(golden, monkeypatch, change, says):
    parts = whole(golden)
    parts[1] = change(parts[1])
    with pytest.raises(UsageError, match=says) as caught:
        look(golden, monkeypatch, table(golden, parts))
    assert "1.parquet" in str(caught.value), "it names the file"


@pytest.mark.parametrize(
    ("kind", "other"), [(pa.float32(), "double"), (pa.float64(), "float"), (pa.float64(), "halffloat")]
)
def test_floating_numbers_of_another_width_are_other_numbers(tmp_path, kind, other):
    found = {"float": pa.float32(), "double": pa.float64(), "halffloat": pa.float16()}[other]
    rows = {"at": pa.array([[1e30]] if other == "double" else [[0.5]], pa.list_(pa.float64())).cast(pa.list_(found))}
    pq.write_table(pa.table(rows), tmp_path / "0.parquet")
    assert open_table("table", (str(tmp_path),), pa.schema({"at": pa.list_(found)}), None).chunks
    with pytest.raises(UsageError, match=rf"0.parquet: column 'at' is list<.*{other}>, but list<.* in the source"):
        open_table("table", (str(tmp_path),), pa.schema({"at": pa.list_(kind)}), None)


def test_values_that_do_not_fit_and_nulls_are_refused_when_they_are_read(golden, monkeypatch):
    rows = archived(golden, 0, 0, 40)
    nulls = pa.array([None, *range(39)], pa.int64())
    declared = table(golden, {0: rows.set_column(1, "amount", nulls)})
    with pytest.raises(ColumnError, match=r"0.parquet: row group 0: column 'amount' must not be null"):
        golden.backfill(monkeypatch, LocalEngine(), CUTS, "first", tables=(declared,))
    none = rows.set_column(4, "offset", nulls)
    with pytest.raises(UsageError, match="has rows without 'offset'"):
        look(golden, monkeypatch, table(golden, {0: none}))


def test_types_of_other_writers_are_taken(golden, monkeypatch):
    rows = archived(golden, 0, 0, 40)
    rows = rows.set_column(0, "user_id", rows["user_id"].cast(pa.int32()))
    rows = rows.set_column(2, "ts", rows["ts"].cast(pa.timestamp("us")))
    made = golden.backfill(monkeypatch, LocalEngine(), CUTS, tables=(table(golden, {0: rows}),))
    reached = golden.watermark(CUTS)
    assert golden.staged(made.uri) == golden.expected(CUTS, reached)


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
def test_partitions_that_folders_tell(golden, monkeypatch, options):
    parts = {f"partition={split}/0": rows.drop_columns(["partition"]) for split, rows in whole(golden).items()}
    declared = table(golden, parts, **options)
    (golden.folder / "table" / "_SUCCESS").touch()
    hidden = golden.folder / "table" / "_temporary"
    hidden.mkdir()
    (hidden / "0.parquet").write_bytes(b"no table")
    made = golden.backfill(monkeypatch, LocalEngine(), CUTS, tables=(declared,))
    assert golden.staged(made.uri) == golden.expected(CUTS, golden.watermark(CUTS))
    assert made.tables["orders"] == {f"orders-{split}": (0, 40) for split in range(3)}


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
@pytest.mark.parametrize("value", ["abc", "1.0", "", "1" * 30, "__HIVE_DEFAULT_PARTITION__"])
def test_a_folder_that_tells_no_number_is_named(golden, monkeypatch, value, options):
    rows = archived(golden, 0, 0, 40).drop_columns(["partition"])
    declared = table(golden, {f"partition={value}/0": rows}, **options)
    with pytest.raises(
        UsageError, match=r"partition=.*/0.parquet.* (has no number as its value|has rows without 'partition')"
    ):
        look(golden, monkeypatch, declared)


def test_files_by_name_and_topics_by_column(golden, monkeypatch):
    for number, rows in whole(golden).items():
        named = rows.append_column("topic", pa.array(["orders"] * 40).dictionary_encode())
        pq.write_table(named, golden.folder / f"{number}.parquet")
    offsets = Offsets(partition="partition", offset="offset", topic="topic")
    files = tuple(str(golden.folder / f"{number}.parquet") for number in range(3))
    declared = TableHistory(uid="orders", uris=files, offsets=offsets)
    assert begins(look(golden, monkeypatch, declared)) == [40, 40, 40]
    twice = TableHistory(uid="orders", uris=(*files, files[0]), offsets=offsets)
    with pytest.raises(UsageError, match=r"0.parquet is named twice"):
        look(golden, monkeypatch, twice)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("_delta_log/0000.json", "table of Delta"),
        ("metadata/v1.metadata.json", "Iceberg table, but does not name its current metadata"),
        (".hoodie/hoodie.properties", "table of Hudi"),
    ],
)
def test_folders_whose_files_are_listed_elsewhere_are_refused(golden, monkeypatch, file, says):
    declared = table(golden, whole(golden))
    path = golden.folder / "table" / file
    path.parent.mkdir()
    path.touch()
    with pytest.raises(UsageError, match=says):
        look(golden, monkeypatch, declared)


def test_a_folder_without_files_is_refused(golden, monkeypatch):
    (golden.folder / "empty").mkdir()
    declared = TableHistory(uid="orders", uris=(str(golden.folder / "empty"),), offsets=OFFSETS)
    with pytest.raises(UsageError, match="there is no Parquet file at"):
        look(golden, monkeypatch, declared)


def test_a_file_that_changes_meanwhile_is_refused(golden, monkeypatch):
    options = BackfillOptions(
        target=str(golden.folder / "savepoint"), until=golden.until(CUTS), tables=(table(golden, whole(golden)),)
    )
    work = Backfill(golden.graph(monkeypatch), options, SystemClock(), SystemRand())
    table(golden, {1: archived(golden, 1, 0, 39)})
    with pytest.raises(ConnectorError, match=r"1.parquet has \d+ bytes, but had"):
        work.run(LocalEngine(), lambda *_: None)


def test_a_table_without_offsets_comes_first_and_nobody_is_as_far_as_it(golden, monkeypatch):
    rows = {split: part.drop_columns(["partition", "offset"]) for split, part in whole(golden).items()}
    declared = TableHistory(uid="orders", uris=table(golden, rows).uris)
    with pytest.raises(UsageError, match="has no offsets"):
        look(golden, monkeypatch, declared)
    over = {"positions": dict.fromkeys(("orders-0", "orders-1", "orders-2"), 40)}
    made = golden.backfill(monkeypatch, LocalEngine(), CUTS, tables=(declared,), cut_over=over)
    assert made.rows_read == sum(CUTS)
    assert made.watermark == golden.watermark(CUTS), "each split has rows behind the table"
    assert golden.staged(made.uri) == golden.expected(CUTS, made.watermark)
    alone = golden.backfill(
        monkeypatch, LocalEngine(), (40, 50, 50), "alone", tables=(declared,), cut_over=over, piece_rows=20
    )
    assert (alone.rows_read, alone.watermark, alone.rows_staged) == (140, None, 0), "of the first nobody knows how far"


def test_a_table_without_offsets_is_not_cut(golden, monkeypatch):
    rows = {split: part.drop_columns(["partition", "offset"]) for split, part in whole(golden).items()}
    declared = TableHistory(uid="orders", uris=table(golden, rows).uris)
    over = {"positions": dict.fromkeys(("orders-0", "orders-1", "orders-2"), 40)}
    until = {"positions": {**over["positions"], "orders-1": 39}}
    with pytest.raises(UsageError, match="'orders-1' ends at 39, before the cut-over at 40"):
        look(golden, monkeypatch, declared, until=until, cut_over=over)
    for until in (over, {"begin": True}):
        assert begins(look(golden, monkeypatch, declared, until=until, cut_over=over)) == [40, 40, 40]


def test_options_that_name_nothing(golden, monkeypatch):
    graph = golden.graph(monkeypatch)
    with pytest.raises(UsageError, match="no source of that uid"):
        histories(graph, HistoryBounds(until=golden.until(CUTS)), (TableHistory(uid="order", uris=("x",)),))
    with pytest.raises(UsageError, match="a cut-over needs a table"):
        histories(graph, HistoryBounds(until=golden.until(CUTS), cut_over={"timestamp": 1}), ())
    with pytest.raises(UsageError, match="has no table, and so no cut-over"):
        histories(graph, HistoryBounds(until={"begin": True}), ())


def test_cut_overs_are_of_sources_with_a_table_and_without_offsets_of_all_their_splits(tmp_path, monkeypatch):
    both = Golden("join", tmp_path, rows=300)
    graph, declared = both.graph(monkeypatch), both.archive((40, 40, 40))
    over = {f"orders/orders-{split}": 30 for split in range(3)}

    def begun(positions, known=declared):
        cut = HistoryBounds(until=both.until(CUTS), cut_over={"positions": positions}, piece_rows=30)
        found = histories(graph, cut, (known,))
        return [begins(found[v.id]) for v in graph.vertices if v.is_source and v.operators[0].uid == "orders"]

    assert begun(over) == [[30, 30, 30]]
    with pytest.raises(UsageError, match="source 'others' has no table, and so no cut-over"):
        begun({**over, "others/orders-0": 30})
    with pytest.raises(UsageError, match="position of 'other/orders-0'"):
        begun({**over, "other/orders-0": 30})
    no_offsets = TableHistory(uid="orders", uris=declared.uris)
    with pytest.raises(UsageError, match="orders-2 has no position"):
        begun({split: at for split, at in over.items() if split != "orders/orders-2"}, no_offsets)


def test_offsets_one_by_one():
    numbers = pa.array([4, 5, 7]).to_numpy()
    assert require_next(numbers, 4, "it", sparse=True) == 8
    for due, says in ((4, "offsets 6 to 6 are missing"), (3, "offsets 3 to 3 are missing"), (5, "offset 4 twice")):
        with pytest.raises(UsageError, match=says):
            require_next(numbers, due, "it", sparse=False)


def counted(strategy, end=600):
    env = ps.Environment(parallelism=2, checkpoint_interval="1s")
    source = DatagenSource(rows=end, splits=2, users=5, event_rate=200, disorder_ms=300)
    stream = env.from_source(source, watermarks=strategy, uid="orders")
    counts = stream.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count()).uid("counts")
    counts.sink_to(FileSink("/tmp/none"), uid="out")
    return env.job_graph()


@pytest.mark.parametrize("ends", [(120, 0), (300, 300)])
def test_where_watermarks_go_through_all_of_a_split_table_and_source_are_one_piece(tmp_path, ends, monkeypatch):
    monkeypatch.setattr("penstock.backfill.task.SystemClock", ManualClock)  # who waits for rows waits no real time
    marked = pl.when(pl.col("amount") > 90).then(pl.col("ts"))
    strategy = ps.WatermarkStrategy.punctuated(timestamp="ts", watermark=marked)
    pattern = OrderPattern(splits=2, users=5, event_rate=200, disorder_ms=300)
    for split, end in enumerate(ends):
        rows = pa.Table.from_batches([orders(pattern, split, 0, end)])
        rows = rows.append_column("partition", pa.array([split] * end, pa.int32()))
        rows = rows.append_column("offset", pa.array(range(end), pa.int64()))
        (tmp_path / "table").mkdir(exist_ok=True)
        pq.write_table(rows, tmp_path / "table" / f"{split}.parquet", row_group_size=50)
    declared = TableHistory(uid="orders", uris=(str(tmp_path / "table"),), offsets=OFFSETS)
    made = []
    for name, tables in (("plain", ()), ("stitched", (declared,))):
        options = BackfillOptions(target=str(tmp_path / name), parts=2, piece_rows=40, tables=tables)
        work = Backfill(counted(strategy), options, SystemClock(), SystemRand())
        made.append(work.run(LocalEngine(), lambda *_: None))
    plain, stitched = made
    assert (stitched.rows_read, stitched.rows_staged) == (plain.rows_read, plain.rows_staged)
    assert stitched.watermark == plain.watermark is not None
    whole_table = TableHistory(uid="orders", uris=declared.uris)
    cut = HistoryBounds(cut_over={"positions": {"orders-0": 120, "orders-1": 0}}, piece_rows=40)
    with pytest.raises(UsageError, match="need the rows of each split"):
        histories(counted(strategy), cut, (whole_table,))
