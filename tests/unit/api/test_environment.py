"""The environment: settings, executors, and jobs that run and are read back."""

import contextlib
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.building import executors
from penstock.api.building.executors import set_default_executor
from penstock.api.environment import use_executor
from penstock.config.settings import JobSettings


@pytest.fixture
def job(env, source, sink):
    env.from_source(source(), uid="in").sink_to(sink(), uid="out")
    return env


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_are_texts_with_units():
    settings = ps.Environment(
        parallelism=3,
        checkpoint_interval="5s",
        checkpoint_root="s3://bucket/x",
        state_backend="rocksdb",
        key_groups=64,
        buffer_timeout="20ms",
        managed_memory="1.5GB",
        checkpoint_timeout=60,
        restart=ps.RestartStrategy(kind="fixed-delay", attempts=2),
        requirements=["numpy==2.0"],
        slot_resources=[ps.ResourceProfile(group="heavy", cpu_cores=2)],
    ).settings
    assert settings == JobSettings(
        parallelism=3,
        checkpoint_interval_ms=5000,
        checkpoint_root="s3://bucket/x",
        state_backend="rocksdb",
        key_groups=64,
        buffer_timeout_ms=20,
        managed_memory_bytes=3 << 29,
        checkpoint_timeout_ms=60_000,
        restart=ps.RestartStrategy(kind="fixed-delay", attempts=2),
        requirements=("numpy==2.0",),
        slot_resources=(ps.ResourceProfile(group="heavy", cpu_cores=2.0),),
    )


def test_every_setting_can_be_given_under_its_own_name(tmp_path):
    defaults = {name: value for name, value in msgspec.structs.asdict(JobSettings()).items() if value is not None}
    assert ps.Environment(**{**defaults, "checkpoint_root": tmp_path}).settings == JobSettings(
        checkpoint_root=str(tmp_path)
    )


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"paralelism": 2}, ["'paralelism'", "did you mean 'parallelism'?"]),
        ({"checkpoint_interval": "5 parsecs"}, ["checkpoint_interval '5 parsecs'", "'5s'"]),
        ({"state_backend": "tape"}, ["'tape'"]),
        ({"parallelism": "two"}, ["parallelism='two' is not a whole number"]),
        ({"managed_memory": "much"}, ["managed_memory 'much'", "'256MB'"]),
        ({"restart": "perhaps"}, ["restart.kind='perhaps'", "fixed-delay"]),
    ],
)
def test_bad_settings_are_usage_errors(keywords, words):
    with pytest.raises(ps.UsageError) as caught:
        ps.Environment(**keywords)
    for word in words:
        assert word in str(caught.value)


def test_checkpoints_have_a_place_that_every_process_agrees_on(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_CHECKPOINT_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert ps.Environment().settings.checkpoint_root == str(tmp_path / ".penstock/checkpoints")
    assert ps.Environment(checkpoint_root="here").settings.checkpoint_root == str(tmp_path / "here")
    assert ps.Environment(checkpoints=Path("there")).settings.checkpoint_root == str(tmp_path / "there")
    monkeypatch.setenv("PENSTOCK_CHECKPOINT_ROOT", "s3://b/x")
    assert ps.Environment().settings.checkpoint_root == "s3://b/x"


def test_from_args_takes_the_command_line_before_the_defaults():
    arguments = [
        "--parallelism", "4", "--checkpoint-interval=1s", "--set", "key_groups=8", "--set", "restart.kind=none", "-m",
    ]  # fmt: skip
    settings = ps.Environment.from_args(arguments, parallelism=1, buffer_timeout="7ms").settings
    assert (settings.parallelism, settings.checkpoint_interval_ms, settings.key_groups) == (4, 1000, 8)
    assert (settings.restart.kind, settings.buffer_timeout_ms) == ("none", 7)


@pytest.mark.parametrize(
    "arguments", [["--parallelism", "x"], ["--parallelism"], ["--set", "key_groups"], ["--set", "no=1"]]
)
def test_a_bad_command_line_is_a_usage_error(arguments):
    with pytest.raises(ps.UsageError):
        ps.Environment.from_args(arguments)


# --- executors ------------------------------------------------------------------------------------------------------


def test_jobs_run_on_the_executor_in_place(job, executor):
    mine = executor()
    with use_executor(mine, {"parallelism": "7", "checkpoint-interval-ms": "1s"}) as results:
        result = job.execute("my-job")
    assert results == [result]
    assert result.state == "FINISHED"
    (graph,) = mine.graphs
    assert graph.name == "my-job"
    assert (graph.settings.parallelism, graph.settings.checkpoint_interval_ms) == (7, 1000)
    assert [v.parallelism for v in graph.vertices] == [7]
    assert job.settings.parallelism == 2


def test_submit_returns_the_handle(job, executor):
    with use_executor(executor()):
        assert job.submit("my-job") == "handle"


def test_without_one_in_place_the_default_runs(job, executor, monkeypatch):
    monkeypatch.setattr(executors, "_registry", executors._Registry())
    with pytest.raises(ps.UsageError, match="no executor"):
        job.execute("my-job")
    mine = executor()
    set_default_executor(lambda: mine)
    job.execute("my-job")
    assert len(mine.graphs) == 1


def test_an_executor_is_only_in_place_inside_its_block(job, executor):
    outer, inner = executor(), executor()
    with use_executor(outer):
        with contextlib.suppress(ZeroDivisionError), use_executor(inner):
            job.execute("a")
            1 / 0  # noqa: B018
        job.execute("b")
    assert [g.name for g in inner.graphs] == ["a"]
    assert [g.name for g in outer.graphs] == ["b"]


def test_an_empty_job_is_refused(env, executor):
    with use_executor(executor()), pytest.raises(ps.GraphError, match="no operator"):
        env.execute("my-job")


# --- collecting -----------------------------------------------------------------------------------------------------


def write_rows(graph):
    """Do what the collect operators of two subtasks would."""
    (collect,) = (o for v in graph.vertices for o in v.operators if o.kind == "collect")
    folder = Path(collect.config["folder"])
    folder.mkdir(parents=True)
    for subtask, values in enumerate(([1, 2], [3])):
        table = pa.table({"user_id": pa.array(values, pa.int64())}, schema=pa.schema([("user_id", pa.int64(), False)]))
        with pa.OSFile(str(folder / f"rows-{subtask}-0.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as w:
            w.write_table(table)


def test_collect_runs_up_to_the_stream_and_reads_it_back(env, orders, sink, executor):
    stream = orders.select("user_id")
    orders.sink_to(sink(), uid="not-run")
    mine = executor(write_rows)
    with use_executor(mine):
        rows = stream.execute_and_collect()
    assert rows.equals(pl.DataFrame({"user_id": [1, 2, 3]}))
    (graph,) = mine.graphs
    assert [o.kind for v in graph.vertices for o in v.operators] == ["source", "project", "collect"]
    assert "penstock-collect-" in graph.settings.checkpoint_root
    assert not Path(graph.settings.checkpoint_root).parent.exists()
    stream.sink_to(sink(), uid="out")
    assert [o.kind for v in env.job_graph("j").vertices for o in v.operators].count("collect") == 0


def test_collecting_an_endless_stream_is_refused(env, source, executor):
    stream = env.from_source(source(), uid="in")
    with use_executor(executor()), pytest.raises(ps.GraphError, match="never end"):
        stream.execute_and_collect()


# --- the package ----------------------------------------------------------------------------------------------------


def test_every_public_name_is_there():
    for name in ps.__all__:
        assert getattr(ps, name) is not None
    assert set(dir(ps)) == set(ps.__all__)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(AttributeError, match=r"no 'Nothing' \(there are: .*Environment"):
        ps.Nothing  # noqa: B018


def test_names_in_a_group_of_settings_are_checked():
    with pytest.raises(ps.UsageError, match=r"unknown setting autoscaler\.enabledd \(did you mean 'enabled'"):
        ps.Environment(autoscaler={"enabledd": True})
    with pytest.raises(ps.UsageError, match=r"unknown setting restart\.kin \(did you mean 'kind'"):
        ps.Environment(restart={"kin": "none"})
    found = ps.Environment(autoscaler={"enabled": True, "restart_time": "20s"}).settings.autoscaler
    assert (found.enabled, found.restart_time_ms) == (True, 20_000)
