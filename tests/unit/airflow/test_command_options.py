"""Options of commands: what templates made of them, as a command line has them."""

import pytest

from penstock.core.errors import UsageError
from penstock_airflow.command_options import (
    BACKFILL,
    CHECK,
    CHECK_BACKFILL,
    REPARTITION,
    RUN,
    UPGRADE,
    arguments_of,
    environment_of,
)


def test_each_kind():
    given = {
        "checkpoints": "5", "max_restarts": "0", "deadline": " 90s ", "from_checkpoint": "True",
        "canonical": True, "no_rollback": "False", "accept": '["out", "side"]', "settings": {"a": 1, "b": "x y"},
        "target": "None", "environment": {"N": 1},
    }  # fmt: skip
    assert arguments_of(given, UPGRADE) == [
        "--checkpoints", "5", "--max-restarts", "0", "--deadline", "90s", "--from-checkpoint", "--canonical",
        "--accept", "out", "--accept", "side", "--set", "a=1", "--set", "b=x y",
    ]  # fmt: skip
    assert environment_of(given) == {"N": 1}


def test_what_is_not_given_is_left_out():
    assert arguments_of(dict.fromkeys(RUN), RUN) == []
    assert arguments_of(dict.fromkeys(REPARTITION, ""), REPARTITION) == []


@pytest.mark.parametrize("wrong", [{"fresh": True}, {"settings": "[1]"}, {"allow_non_restored_state": "totals"}])
def test_refused(wrong):
    with pytest.raises(UsageError):
        arguments_of(wrong, CHECK)


def test_zero_bytes_are_an_amount():
    assert arguments_of({"spark_above": "0"}, REPARTITION) == ["--spark-above", "0"]
    assert arguments_of({"engine": "local"}, REPARTITION) == ["--engine", "local"]
    assert arguments_of({"spark_conf": '{"spark.executor.memory": "4g"}'}, REPARTITION) == [
        "--spark-conf", "spark.executor.memory=4g",
    ]  # fmt: skip


def test_of_a_backfill():
    given = {"until": "orders-0=5", "master": "None", "parts": "4", "accept": "[]", "spark_conf": "{}"}
    assert arguments_of(given, BACKFILL) == ["--until", "orders-0=5", "--parts", "4"]
    with pytest.raises(UsageError, match="unknown options parts"):
        arguments_of({"parts": "4"}, CHECK_BACKFILL)
    spark = {"master": "yarn", "spark_conf": {"spark.executor.memory": "4g", "spark.x": 2}}
    told = ["--master", "yarn", "--spark-conf", "spark.executor.memory=4g", "--spark-conf", "spark.x=2"]
    assert arguments_of(spark, BACKFILL) == told
    tables = {"history": ["orders=a", "orders=b"], "sparse": [], "cut_over": "orders-0=5"}
    told = ["--history", "orders=a", "--history", "orders=b", "--cut-over", "orders-0=5"]
    assert arguments_of(tables, BACKFILL) == arguments_of(tables, CHECK_BACKFILL) == told
