"""Nexmark's queries, all in one small job: every row they leave is what DuckDB makes of the same bids."""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from penstock_lab.bench.jobs import nexmark, nexmark_answers
from penstock_lab.nexmark import events

JOB = Path(__file__).parent / "nexmark_job.py"
sys.path.insert(0, str(JOB.parent))
from nexmark_job import SOURCE  # noqa: E402 - it lies beside this file

HOT = """
    SELECT auction, to_timestamp(last * 2) AS window_end, num
    FROM (SELECT auction, last, count(*) AS num
          FROM (SELECT auction, UNNEST(generate_series(step + 1, step + 5)) AS last
                FROM (SELECT auction, epoch_us(dateTime) // 2000000 AS step FROM bid))
          GROUP BY auction, last)
    QUALIFY num = max(num) OVER (PARTITION BY last)
"""
#: As Nexmark writes it: the greatest price of each window joined to the bids.
HIGHEST = """
    SELECT auction, bidder, price, dateTime, extra
    FROM bid JOIN (
        SELECT max(price) AS top, epoch_us(dateTime) // 10000000 * 10000000 AS low FROM bid GROUP BY low
    ) ON price = top AND epoch_us(dateTime) BETWEEN low AND low + 10000000
"""
#: Of the few bidders that the job makes for it.
SESSIONS = """
    SELECT bidder, min(dateTime) AS window_start, max(dateTime) + INTERVAL 10 SECOND AS window_end,
           count(*) AS bid_count
    FROM (SELECT *, sum(fresh) OVER (PARTITION BY bidder ORDER BY dateTime ROWS UNBOUNDED PRECEDING) AS session
          FROM (SELECT *, CASE WHEN dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime)
                               <= INTERVAL 10 SECOND THEN 0 ELSE 1 END AS fresh
                FROM (SELECT auction % 17 AS bidder, dateTime FROM bid
                      WHERE (auction + epoch_us(dateTime) // 1000000) % 17 < 3)))
    GROUP BY bidder, session
"""
STATISTICS = """
    SELECT auction, CAST(dateTime AS DATE) AS day, count(*) AS total_bids,
           count(*) FILTER (WHERE price < 10000) AS rank1_bids,
           count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
           count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
           min(price) AS min_price, max(price) AS max_price, CAST(sum(price) // count(*) AS BIGINT) AS avg_price,
           CAST(sum(price) AS BIGINT) AS sum_price
    FROM bid GROUP BY ALL
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run all queries as one job; return what each has left, and DuckDB over the same bids."""
    folder = tmp_path_factory.mktemp("nexmark")
    done = subprocess.run([sys.executable, str(JOB), str(folder)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: pl.read_parquet(folder / name / "*.parquet") for name in nexmark.QUERIES}
    pattern = SOURCE.pattern()
    engine = duckdb.connect(config={"threads": 1})
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("bid", pa.Table.from_batches(events(pattern, SOURCE.events), schema=pattern.schema))
    yield found, lambda sql: pl.DataFrame(pl.from_arrow(engine.sql(sql).to_arrow_table()))
    engine.close()


def same(found, wanted):
    """The same rows, in whatever order; times and numbers as they count."""
    wanted = wanted.select(pl.col(n).cast(found.schema[n]) for n in wanted.columns)
    found = found.select(wanted.columns)
    assert found.height > 0
    assert found.sort(found.columns).equals(wanted.sort(wanted.columns))


pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("query", "sql"),
    [
        ("q0", "SELECT auction, bidder, price, dateTime, extra FROM bid"),
        ("q1", "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid"),
        ("q2", "SELECT auction, price FROM bid WHERE auction % 123 = 0"),
        ("q5", HOT),
        ("q7", HIGHEST),
        ("q11", SESSIONS),
    ],
)
def test_rows_are_those_of_another_engine(results, query, sql):
    found, engine = results
    same(found[query], engine(sql))


def test_q11_has_bidders_with_several_sessions(results):
    found, _ = results
    assert found["q11"].group_by("bidder").len()["len"].max() > 1


def test_q12_every_bid_is_counted_once_in_a_window_of_ten_seconds(results):
    found, engine = results
    rows = found["q12"]
    assert (rows["window_end"] - rows["window_start"]).dt.total_seconds().unique().to_list() == [10]
    assert rows.select("bidder", "window_start").is_duplicated().sum() == 0
    totals = rows.group_by("bidder").agg(pl.col("bid_count").sum())
    same(totals, engine("SELECT bidder, count(*) AS bid_count FROM bid GROUP BY ALL"))


def test_q17_the_last_row_of_an_auctions_day_has_its_figures(results):
    found, engine = results
    rows = found["q17"]
    assert rows.height == found["q0"].height, "a row for every bid"
    latest = rows.sort("total_bids").group_by("auction", "day").last()
    same(latest, engine(STATISTICS))


def test_q18_the_latest_row_of_bidder_and_auction_is_their_last_bid(results):
    found, engine = results
    rows = found["q18"]
    latest = rows.group_by("bidder", "auction").agg(pl.col("dateTime").max())
    same(latest, engine("SELECT bidder, auction, max(dateTime) AS dateTime FROM bid GROUP BY ALL"))
    whole = engine("SELECT * FROM bid").with_columns(pl.col("dateTime").cast(rows.schema["dateTime"]))
    assert rows.join(whole, on=whole.columns, how="anti").height == 0, "every row is a bid as it was"


@pytest.mark.parametrize("query", [q for q in nexmark.QUERIES if q not in ("q11", "q18")])
def test_the_answers_that_gate_the_figures_are_those_rows(results, query):
    found, _ = results
    known = nexmark.QUERIES[query]
    rows = found[query].lazy()
    if query == "q1":
        rows = rows.with_columns((pl.col("price") * 1000).cast(pl.Int64))
    answer = known.answer(nexmark_answers.bids(SOURCE))
    got, wanted = (nexmark_answers.checksum(r, known.shown).split(":") for r in (rows, answer))
    assert [got[i] for i in known.firm] == [wanted[i] for i in known.firm]


@pytest.mark.parametrize("workload", ["nexmark-q5", pytest.param("nexmark-q12-whole", marks=pytest.mark.nightly)])
def test_a_query_is_a_workload_of_penstock_bench(workload):
    command = [sys.executable, "-m", "penstock.cli.main", "bench", workload, "--events", "300000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    assert (figures["workload"], figures["events"]) == (workload, 300_000)
    assert figures["checkpoints"] >= 1
