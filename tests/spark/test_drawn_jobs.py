"""Drawn jobs over drawn rows: a backfill gives the same in any order of tasks and packets, on Spark, and as live.

A seed gives rows, splits, cuts and job; a failure prints the command that repeats it.
"""

import pytest
from tests.spark.drawn.checks import check_here, check_there
from tests.spark.drawn.jobs import FAMILIES, Drawn
from tests.support.depth import first_seed, scaled

from penstock.backfill.spark import SparkEngine

#: Drawn jobs of a nightly run, in this process and on Spark.
HERE, THERE = 2_500, 75


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_backfill_does_not_depend_on_parts_packets_and_tasks(family):
    seeds = scaled(HERE) // len(FAMILIES) + 1
    for seed in range(first_seed(), first_seed() + seeds):
        check_here(Drawn(family, seed))


@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_a_backfill_on_spark_gives_the_same(spark):
    for seed in range(first_seed(), first_seed() + scaled(THERE)):
        check_there(Drawn(FAMILIES[seed % len(FAMILIES)], seed), lambda: SparkEngine(spark.sparkContext))
