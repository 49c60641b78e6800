"""Settings of Spark on the command line: one form for all commands, refused before anything is read or started."""

import sys

import pytest
from tests.spark.golden import Golden

from penstock.cli import main
from penstock.cli.start.spark_options import spark_settings
from penstock.core.errors import UsageError, extra_hint

BACKFILL = ("backfill", "job.py", "--to", "begun")
OTHERS = {
    "run": ("run", "job.py", "--engine", "spark", "--master", "local[1]"),
    "cluster": ("cluster", "start", "--provider", "spark", "--master", "local[1]"),
    "backfill": (*BACKFILL, "--master", "local[1]"),
}


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """The one line of a command that makes no sense, in a folder with a job file that must not be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    (tmp_path / "job.py").write_text("raise AssertionError('it was run')\n")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.app()
        assert ended.value.code == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py"]
        return capsys.readouterr().err

    return run


def test_pairs():
    given = ["spark.executor.memory=4g", " spark.x.y = a=b c ", "spark.empty=", "spark.x.y=a=b c"]
    assert spark_settings(given) == {"spark.executor.memory": "4g", "spark.x.y": "a=b c", "spark.empty": ""}
    assert spark_settings(None) == spark_settings([]) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["spark.executor.memory"], r"'spark.executor.memory' has no value \(for example --spark-conf spark\."),
        (["executor.memory=4g"], r"'executor.memory=4g': names of Spark's settings begin with 'spark\.'"),
        (["spark.=4g"], "begin with"),
        (["=4g"], "begin with"),
        (["spark.master=yarn"], r"is not allowed \(use --master yarn\)"),
        (["spark.a=1", "spark.b=1", "spark.a=2"], r"has spark.a as '1' and as '2' \(set it once\)"),
    ],
)
def test_what_makes_no_sense(given, says):
    with pytest.raises(UsageError, match=says):
        spark_settings(given)


@pytest.mark.parametrize("command", OTHERS)
def test_every_command_tells_it_in_one_line(refused, command):
    said = refused(*OTHERS[command], "--spark-conf", "spark.a=1", "--spark-conf", "spark.b")
    assert said == "penstock: --spark-conf 'spark.b' has no value (for example --spark-conf spark.executor.memory=4g)\n"


@pytest.mark.parametrize(
    ("command", "way"),
    [
        (("run", "job.py"), "run it with --engine spark --master URL"),
        (("cluster", "start"), "start it with --provider spark --master URL"),
        (BACKFILL, "add a master: --master local[4]"),
    ],
    ids=["run", "cluster", "backfill"],
)
def test_settings_without_spark(refused, command, way):
    said = refused(*command, "--spark-conf", "spark.a=1")
    assert said == f"penstock: --spark-conf 'spark.a=1' has no effect without Spark ({way})\n"


@pytest.fixture
def backfill(monkeypatch, tmp_path):
    """Return a function that runs the command of a job to a folder on Spark, for which PySpark is missing."""
    graph = Golden("windows", tmp_path).graph(monkeypatch)
    monkeypatch.setitem(sys.modules, "penstock.snapshots.on_spark.spark_context", None)
    monkeypatch.setattr("penstock.cli.start.backfill.planned", lambda *_: graph)
    arguments = ["penstock", "backfill", "job.py", "--master", "local[1]", "--to"]

    def run(target):
        monkeypatch.setattr(sys, "argv", [*arguments, str(target)])
        with pytest.raises(SystemExit) as ended:
            main.app()
        assert ended.value.code == 2

    return run


def test_a_backfill_without_pyspark(backfill, capsys, tmp_path):
    backfill(tmp_path / "begun")
    way = f"{extra_hint('spark')}; without --master it runs in this process"
    assert capsys.readouterr() == ("starting Spark on local[1]\n", f"penstock: Spark is not installed ({way})\n")


def test_a_used_folder_is_refused_before_spark_starts(backfill, capsys, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "manifest.json").touch()
    backfill(tmp_path / "used")
    said, refused = capsys.readouterr()
    assert said == ""
    assert "already holds a savepoint" in refused
