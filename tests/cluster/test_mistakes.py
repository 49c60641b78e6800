"""Mistakes that show when a job is submitted or runs, and on the command line: what is said of each, and how soon.

The table of mistakes in a job file itself is `tests/unit/api/test_mistakes.py`.
"""

import gzip
import re
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.waiting import patience, wait_until

from penstock.cli.main import app
from penstock.client.handle import TERMINAL
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: So soon a message has to be there, on a quiet machine.
SOON_S = 20.0
BEGIN = """\
from collections.abc import Iterator
import polars as pl
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink, FileSource
from penstock_connectors.kafka import KafkaSink, KafkaSource
class Paid(ps.Schema):
    user: str
    amount: int
env = ps.Environment(1, checkpoint_interval="200ms", checkpoint_root="ROOT", restart="none")
paid = lambda name="paid.jsonl", **more: env.from_source(FileSource("FOLDER/" + name, Paid, **more), uid="paid")
out = lambda stream: stream.sink_to(FileSink("FOLDER/out"), uid="out")
"""
END = 'env.execute("mistaken")\n'
STATE = """\
class Last(ps.KeyedProcessFunction):
    last: ps.ValueState[int] = ps.value_state()
    def process(self, row: Paid, ctx: ps.ProcessContext) -> Iterator[Paid]:
        {line}
        yield row
out(paid().key_by("user").process(Last()).uid("last"))
"""
#: What is wrong -> the lines of the job file, and what is said: the cause, the way out.
JOBS = {
    "no such file": ("out(paid('nope.jsonl'))", r"no file at \S+/nope.jsonl", "give a file, a folder"),
    "a column that the file lacks": (
        "out(paid('paid.csv', format='csv'))",
        r"paid.csv has no column amount \(its first line names: user, sum; ",
        "correct the file or the schema",
    ),
    "a bad row": (
        "out(paid('bad.jsonl'))",
        r"bad.jsonl line 2: field 'amount': an integer was expected, not a string; operator 'paid' .+ line: b'.+'",
        "skip",
    ),
    "a root that is no place for files": (
        "env = ps.Environment(1, checkpoint_root='/proc/nope')\nout(paid())",
        "checkpoint_root='/proc/nope': cannot write .*: (No such file|Permission denied|Not a directory)",
        "name a folder .* set another checkpoint_root",
    ),
    "a root below a file": (
        "env = ps.Environment(1, checkpoint_root='FOLDER/paid.jsonl/root')\nout(paid())",
        r"checkpoint_root='\S+/paid.jsonl/root': cannot read .*: Not a directory",
        "move it away.* set another checkpoint_root",
    ),
    "an S3 host that is not known": (
        "env = ps.Environment(1, checkpoint_root='s3://bucket/root')\nout(paid())",
        r"s3://bucket/\S+ at http://no-such-host.invalid: unknown host",
        "PENSTOCK_S3_ENDPOINT",
    ),
    "a broker that is not there": (
        (
            "brokers = '127.0.0.1:1,no-such-host.invalid:1'\n"
            "source = KafkaSource(brokers, topic='t', schema=Paid)\nout(env.from_source(source, uid='in'))"
        ),
        (
            rf" job.py:{BEGIN.count(chr(10)) + 2}: Kafka at 127.0.0.1:1,no-such-host.invalid:1 cannot be reached "
            r"within \d+ s: 127.0.0.1:1: it refuses the connection; "
            "no-such-host.invalid:1: the host name no-such-host.invalid is not known"
        ),
        "check that the broker runs",
    ),
    "a property that librdkafka does not know": (
        (
            "wrong = {'sasl.mechansim': 'x'}\n"
            "out(env.from_source(KafkaSource('h:1', topic='t', format='raw', properties=wrong), uid='in'))"
        ),
        'No such configuration property: "sasl.mechansim"',
        "librdkafka",
    ),
    "a function that raises": (
        "out(paid().map(lambda row: row.amuont, returns=Paid))",
        "no attribute 'amuont'",
        r"did you mean 'amount'\? there are: user, amount",
    ),
    "a result of another type": (
        "out(paid().map(lambda row: {'user': 'a', 'amount': 'abc'}, returns=Paid))",
        "field 'amount' does not fit int64",
        "correct the declared type or the value",
    ),
    "a map without its return": (
        "def paid_twice(row) -> Paid:\n    Paid(user=row.user, amount=2)\nout(paid().map(paid_twice))",
        r"map 'map-\d': the function returned None; operator 'map-\d' at job.py:\d+",
        "is a return missing.* filter or flat_map",
    ),
    "a filter that returns text": (
        "out(paid().filter(lambda row: row.user + '').uid('kept'))",
        r"filter 'kept': the function returned a value of type str, not a bool; operator 'kept' at job.py:\d+",
        "return True or False",
    ),
    "a package that workers lack": (
        "def scored(row) -> Paid:\n    import no_such_package\n    return row\nout(paid().map(scored))",
        r"ModuleNotFoundError: No module named 'no_such_package' at \S+job.py:\d+ in scored",
        r"install it in the TaskManagers' Python, /\S+, or name it in ps.Environment\(requirements=",
    ),
    "times of another unit": (
        (
            "times = ps.WatermarkStrategy.monotonic(timestamp='amount', unit='s')\n"
            "out(env.from_source(FileSource('FOLDER/late.jsonl', Paid), watermarks=times, uid='late'))"
        ),
        "event time 'amount' is null or outside the years 1 to 9999 ",
        "its numbers count us: set unit='us' on the watermark strategy",
    ),
    "a result without a field": (
        "out(paid().map(lambda row: {'user': 'a'}, returns=Paid))",
        "has no field 'amount'",
        "rows must have: user, amount",
    ),
    "a text in a state of integers": (
        STATE.format(line="self.last.update(row.user)"),
        r"state 'last': field 'value' does not fit int64: .* set at \S+job.py:\d+ in process",
        "correct",
    ),
    "a method that a state has not": (
        STATE.format(line="self.last.get()"),
        r"no attribute 'get' at \S+:\d+ in process",
        "there are: clear, update, value",
    ),
    "a method without its call": (
        STATE.format(line="self.last.update(self.last.value + row.amount)"),
        r"'method' and 'int' at \S+:\d+ in process",
        r"put \(\) after its name",
    ),
    "a timer by a float": (
        STATE.format(line="ctx.timers.event(1.5)"),
        r"process 'last': a timer's time is 1.5, which is .* at \S+job.py:\d+ in process",
        "for example ctx.timestamp",
    ),
    "a timer without on_timer": (
        STATE.format(line="ctx.timers.event(ctx.timestamp or 1)"),
        "the function has no on_timer",
        "define on_timer",
    ),
    "a text in a column of numbers": (
        "out(paid().with_columns(amount=pl.col('user').cast(pl.Int64)).uid('number'))",
        r"InvalidOperationError: conversion from `str` to `i64` failed in column 'user'.*; operator '.+' at job.py:\d+",
        "leave such rows out before, or cast with strict=False",
    ),
    "a key that cannot be computed": (
        "out(paid().key_by(lambda row: 1 // (row.amount - 1), returns=int).aggregate(n=ps.count()).uid('n'))",
        r"ZeroDivisionError: .* at \S+job.py:\d+ in <lambda>",
        ".",
    ),
    "a window function that raises": (
        (
            "def rows_of(key, window, rows) -> Iterator[Paid]:\n    yield rows[1]\n"
            "out(paid().key_by('user').window(ps.Tumbling('1s', time='processing')).apply(rows_of).uid('rows'))"
        ),
        r"IndexError: .* at \S+job.py:\d+ in rows_of",
        ".",
    ),
    "a compressed file": (
        "out(paid('paid.jsonl.gz'))",
        r"paid.jsonl.gz line 1: not JSON: .*",
        "compressed with gzip: decompress it first",
    ),
    "a Parquet file as text": (
        "out(paid('paid.parquet'))",
        r"paid.parquet line 1: not JSON: .*",
        "it is a Parquet file: set format='parquet'",
    ),
    "the port of a web server": (
        "out(env.from_source(KafkaSource('REST', topic='t', schema=Paid), uid='in'))",
        "Kafka at .* cannot be reached within .*: an HTTP server answers there, not a broker",
        "the address is right",
    ),
    "no env.execute": (
        "out(paid())\nenv.execute = lambda name: None",
        "without calling env.execute",
        "end the job file",
    ),
    "more slots than the cluster has": (
        "env = ps.Environment(9, checkpoint_root='ROOT')\nout(paid())",
        r"needs 9 slots, but this cluster has 2",
        "lower the parallelism",
    ),
}
ROW = r"row 1 of a batch of 1: user='a', amount=1"
#: What is wrong -> the data that follow in the last line.
SHOWN = {
    "a compressed file": r"""line: b['"].*['"]""",  # its header has the time, which may be a quote
    "a Parquet file as text": r"""line: b['"]PAR1.*['"]""",
    "a bad row": r"""line: b'{"user": "a", "amount": "x"}'""",
    "a function that raises": f"AttributeError: .* {ROW}",
    "a result of another type": rf"returned: \{{'amount': 'abc'\}} \(Could not convert 'abc' .*\) {ROW}",
    "a map without its return": ROW,
    "a filter that returns text": f"returned: 'a' {ROW}",
    "a package that workers lack": f"ModuleNotFoundError: .* {ROW}",
    "a result without a field": rf"returned: \{{'user': 'a'\}} {ROW}",
    "a text in a state of integers": rf"value: \{{'value': 'a'\}} \(Could not convert .*\) key 'a', {ROW}",
    "a method that a state has not": f"AttributeError: .* {ROW}",
    "a timer by a float": f"UsageError: a timer's time is 1.5.* {ROW}",
    "a text in a column of numbers": ROW,
    "a key that cannot be computed": f"In your code: .* ZeroDivisionError: .* {ROW}",
    "a window function that raises": r"window .* of key 'a', rows: 1, the first row: Paid\(user='a', amount=1\)",
}
#: What is wrong -> the command, and what is said.
COMMANDS = {
    "an option that is none": (
        "run job.py --paralellism 2",
        r"^penstock: no such option: --paralellism.*--parallelism.*\(`penstock run --help` explains all\)$",
    ),
    "an option's value": (
        "run job.py --parallelism two",
        r"^penstock: invalid value for '--parallelism': Input should be a valid integer.*\(`penstock run --help`",
    ),
    "no job": ("show", r"^penstock: missing argument 'JOB' \(`penstock show --help` explains all\)$"),
    "a state that is none": (
        "state get endless counts nope 1",
        r"'counts' has no state 'nope' \(there are: running\)$",
    ),
    "a key of another type": (
        "state get endless counts running x",
        r"key column user_id has type int64, and 'x' is no value of it \(.+\)$",
    ),
    "a name that cannot be one": (
        "run job.py --name my/job",
        r"job name 'my/job' cannot be used in paths .*\(use letters",
    ),
    "a file that is no Python": ("run paid.parquet", r"paid.parquet is no Python file \(pass the job file.*\)$"),
    "no job file": ("run nothere.py", r"there is no job file nothere.py \(pass the path"),
    "a setting without its unit": ("run job.py --set checkpoint_interval=5", r"'5' is not a duration \(write"),
    "a setting's value that is none": (
        "run job.py --set state_backend=rocks",
        r"setting state_backend='rocks' is not known \(one of hashmap, rocksdb, remote\)",
    ),
    "a setting that is none": (
        "run job.py --set chekpoint_interval=5s",
        r"^penstock: unknown setting 'chekpoint_interval' \(did you mean 'checkpoint_interval'\?\)$",
    ),
    "a savepoint to start from that is none": ("run job.py --from NOWHERE", r"NOWHERE.*\(.+\)$"),
    "a savepoint of no job": ("savepoint nothing", r"no job .*'?nothing'?.*\(.+\)$"),
    "the state of no snapshot": ("state read NOWHERE counts", r"NOWHERE.*\(.+\)$"),
    "a rescale beyond the key groups": ("rescale endless 5000", r"5000.*(key groups|slots).*\(.+\)$"),
    "a rescale to nothing": ("rescale endless 0", r"0 .*\(.+\)$"),
    "a rescale of no vertex": ("rescale endless --vertex nope=2", r"no operator 'nope' \(there are: "),
    "a savepoint where nothing can be written": ("savepoint endless /proc/x", r"/proc/x.*\(.+\)$"),
    "the state of no operator": ("state get endless nope last 1", r"nope.*\(.+\)$"),
    "a job that runs already": ("run ENDLESS", r"job 'endless' is already running in this cluster as \w+"),
    "an upgrade to another job": ("upgrade endless job.py", r"is named 'mistaken', the running job 'endless' \(.+\)$"),
    "no cluster": ("list --cluster http://127.0.0.1:1", r"no JobManager answers at http://127.0.0.1:1"),
}
ENDLESS = """\
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
env = ps.Environment(1, checkpoint_interval="200ms", checkpoint_root="ROOT", key_groups=128)
orders = env.from_source(DatagenSource(splits=1, users=3, rows_per_second=50), uid="orders")
orders.key_by("user_id").aggregate(n=ps.count()).uid("counts").sink_to(FileSink("FOLDER/totals"), uid="out")
env.execute("endless")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("mistakes")
    (made / "paid.jsonl").write_text('{"user": "a", "amount": 1}\n')
    (made / "bad.jsonl").write_text('{"user": "a", "amount":1}\n{"user": "a", "amount": "x"}\n')
    (made / "late.jsonl").write_text('{"user": "a", "amount": 1700000000000000}\n')
    (made / "paid.csv").write_text("user,sum\na,1\n")
    (made / "paid.jsonl.gz").write_bytes(gzip.compress(b'{"user": "a", "amount": 1}\n'))
    pq.write_table(pa.table({"user": ["a"], "amount": [1]}), made / "paid.parquet")
    return made


@pytest.fixture(scope="module")
def cluster(folder):
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=2, most_slots=2, directory=folder / "cluster",
        environment={"PENSTOCK_S3_ENDPOINT": "http://no-such-host.invalid"},
    )  # fmt: skip
    with LocalCluster(config) as running:
        yield running


@pytest.fixture
def written(folder):
    def write(text, name="job.py"):
        text = text.replace("FOLDER", str(folder)).replace("ROOT", str(folder / name.partition(".")[0]))
        (folder / name).write_text(text)
        return folder / name

    return write


@pytest.fixture
def said(cluster, folder, monkeypatch, capsys):
    """Run a command in this process; return what it has said, on one line, and how long it took."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments):
        command = [*arguments] if "--cluster" in arguments else [*arguments, "--cluster", cluster.rest_url]
        command = command if arguments[:2] != ("state", "read") else list(arguments)
        monkeypatch.setattr(sys, "argv", ["penstock", *command])
        capsys.readouterr()
        begun = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            app()
        seconds = time.monotonic() - begun
        out, err = capsys.readouterr()
        assert ended.value.code in (1, 2, 3), out + err
        assert "Traceback" not in err
        assert seconds <= SOON_S * patience(), f"it took {seconds:.1f} s"
        return " ".join(err.split())

    return run


@pytest.mark.parametrize("mistake", JOBS)
def test_a_mistake_in_a_job_is_told_soon_with_its_cause_and_the_way_out(said, written, cluster, mistake):
    lines, cause, way = JOBS[mistake]
    lines = lines.replace("REST", cluster.rest_url.partition("//")[2])
    text = said("run", str(written(BEGIN + lines + "\n" + END)), "--fresh")
    assert re.search(cause, text), text
    assert re.search(rf"\(.*{way}.*\)", text), text
    assert re.search(f"{SHOWN.get(mistake, '')}$", text), text


def test_a_bad_row_that_fails_the_job_is_counted_and_shown(said, written, cluster):
    said("run", str(written(BEGIN + JOBS["a bad row"][0] + "\n" + END)), "--fresh")
    summary = cluster.client().summary("mistaken")
    assert summary["bad-records"] == {"paid": 1}
    assert "bad.jsonl line 2: field 'amount'" in summary["bad-record-examples"]["paid"]


FULL = """\
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink
env = ps.Environment(1, checkpoint_interval="200ms", checkpoint_root="ROOT")
orders = env.from_source(DatagenSource(users=10_000_000, rows_per_second=100_000), uid="orders")
orders.key_by("user_id").aggregate(n=ps.count()).uid("counts").sink_to(FileSink("FOLDER/full-out"), uid="out")
env.execute("full")
"""


def test_a_full_disk_is_told_soon_with_its_cause_and_the_way_out(written, folder):
    """The checkpoints go to a file system of 2 MB, which only the job's processes see."""
    job, root = written(FULL, "full.py"), folder / "full"
    root.mkdir()
    mounted = f"mount -t tmpfs -o size=2m none {root} && exec {sys.executable} -m penstock.cli.main run {job}"
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mounted]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            lines = []
            for line in run.stdout:
                lines.append(line)
                if "No space left" in line and "(restart " in line:
                    break  # the last of the failures that one look has found
        finally:
            run.terminate()
            run.communicate(timeout=60 * patience())
    text = "".join(lines)
    assert re.search(r"full failed: checkpoint \d+ failed: .* cannot write \S+: No space left on device", text), text
    assert re.search(r"\(check that the folder .* has space\).*\(restart \d+, .*penstock show full", text), text


@pytest.fixture(scope="module")
def endless(cluster, folder):
    """A job that runs while commands about it are mistaken."""
    from penstock.api.job_file import planned
    from penstock.client.executors import SubmitOptions, submit_graph

    text = ENDLESS.replace("FOLDER", str(folder)).replace("ROOT", str(folder / "endless"))
    (folder / "endless.py").write_text(text)
    handle = submit_graph(cluster.client(), planned(folder / "endless.py", {}, ""), SubmitOptions())
    summary = lambda: cluster.client().summary(handle.job_id)
    wait_until(lambda: summary()["checkpoints-completed"], summary, step=0.1)
    yield handle
    handle.cancel()
    wait_until(lambda: handle.status() in TERMINAL, handle.status, step=0.1)


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_on_the_command_line_is_told_soon_and_changes_nothing(said, written, endless, folder, mistake):
    written(BEGIN + "out(paid())\n" + END)
    command, words = COMMANDS[mistake]
    command = command.replace("NOWHERE", str(folder / "NOWHERE")).replace("ENDLESS", str(folder / "endless.py"))
    text = said(*command.split())
    assert re.search(words, text), text
    assert endless.status() == "RUNNING"
