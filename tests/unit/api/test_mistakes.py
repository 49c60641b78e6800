"""Mistakes in a job file and what is said of each: the line, what is wrong, and the way out.

Nothing is started: the job file is run as `penstock run` runs it, with an executor that only takes the job. Mistakes
that show while a job runs are in `tests/cluster/test_user_failures.py` and `tests/cluster/test_bad_input.py`.
"""

import re

import pytest

import penstock as ps
from penstock.api.building.operator_nodes import StreamSink
from penstock.api.job_file import planned
from penstock.core.errors import PenstockError
from penstock.core.foreign_names import ways

BEGIN = """\
from collections.abc import Iterator
from datetime import datetime
import polars as pl
import penstock as ps
from penstock_connectors.files import FileSink, FileSource
from penstock_connectors.kafka import KafkaSink, KafkaSource
class Payment(ps.Schema):
    merchant: str
    amount: int
    country: str
    ts: datetime
class Total(ps.Schema):
    merchant: str
    n: int
env = ps.Environment(2, key_groups=4, checkpoint_interval="1s")
source = KafkaSource("localhost:9092", topic="payments", schema=Payment, bounded=True)
late = ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
timed = env.from_source(source, watermarks=late, uid="timed")
plain = env.from_source(source, uid="plain")
keyed = timed.key_by("merchant")
windows = keyed.window(ps.Tumbling("1m"))
sink = KafkaSink("localhost:9092", topic="totals")
"""
END = '\nenv.execute("job")\n'
#: Line of the first line of a mistake.
LINE = BEGIN.count("\n") + 1
CLASS = """\
class Last(ps.KeyedProcessFunction):
    {state}
    def process(self, row: Payment, ctx) -> {returns}:
        yield Total(merchant=row.merchant, n=1)
keyed.process({made}).uid("last")"""


def process(state="last: ps.ValueState[int] = ps.value_state()", returns="Iterator[Total]", made="Last()"):
    return CLASS.format(state=state, returns=returns, made=made)


WIDE = """\
wide = ps.Environment(8, key_groups=4)
windows = wide.from_source(source, watermarks=late, uid="t").key_by("merchant").window(ps.Tumbling("1m"))
windows.aggregate(n=ps.count()).uid("w").sink_to(sink, uid="s")
wide.execute("wide")"""
ENDLESS = """\
endless = ps.Environment(1, checkpoint_interval=None)
endless.from_source(KafkaSource("h:1", topic="t", schema=Payment), uid="p").sink_to(sink, uid="s")
endless.execute("endless")"""
#: What is wrong -> the lines, and what is said: the cause, the way out; the line if it is not the last one.
MISTAKES = {
    # columns
    "key: unknown column": ('timed.key_by("merchnat")', "unknown column 'merchnat'", "did you mean 'merchant'"),
    "key: no column": ("timed.key_by()", "no column is given", "there are: merchant, amount"),
    "key: an expression": (
        'timed.key_by(pl.col("a"))',
        r"the Expr col\(\"a\"\) is not a column's name",
        r"\.with_columns\(key=",
    ),
    "key: a function without a type": ("timed.key_by(lambda row: row.merchant + 1)", "key_by", "returns=int"),
    "key: returns= of columns": ('timed.key_by("merchant", returns=int)', "returns=.*for functions", "leave them out"),
    "aggregate: unknown column": (
        'windows.aggregate(n=ps.sum("amout"))',
        "unknown column 'amout'",
        "did you mean 'amount'",
    ),
    "aggregate: a sum of text": ('windows.aggregate(n=ps.sum("country"))', "type string is not supported", "cast"),
    "aggregate: a dict": (
        "windows.aggregate({'n': ps.count()})",
        "aggregate over tumbling 1m: a dict is not an aggregate",
        r"each by its name: \.aggregate\(n=ps\.count\(\), total=ps\.sum\('amount'\)\)",
    ),
    "aggregate: a list": ("keyed.aggregate([ps.count()])", "a list is not an aggregate", r"each by its name: \.aggreg"),
    "aggregate: a text": ("windows.aggregate(n='count')", "n: 'count' is not an aggregate", r"write ps\.count\(\)"),
    "aggregate: the text of a sum": (
        "windows.aggregate(n='sum')",
        "n: 'sum' is not an aggregate",
        r"write for example ps\.sum\('COLUMN'\)",
    ),
    "aggregate: a function": (
        "windows.aggregate(n=lambda rows: len(rows))",
        "n: the function <lambda> is not an aggregate",
        r"ps\.Aggregator",
    ),
    "with_columns: a dict": (
        "timed.with_columns({'x': pl.col('amount')})",
        "a dict is not a column",
        r"\.with_columns\(x=pl\.col\('amount'\) \* 2\)",
    ),
    "aggregate: none": ("windows.aggregate()", "aggregate", "ps.count"),
    "filter: unknown column": ('timed.filter(pl.col("amnt") > 1)', "unknown column 'amnt'", "did you mean 'amount'"),
    "filter: a field that is no bool": (
        "timed.filter(lambda row: row.country)",
        r"filter\(<lambda>\): the function returns the field 'country', which is string, not bool",
        "return True or False",
    ),
    "filter: the row": ("timed.filter(lambda row: row)", "the function returns its row", "return True or False"),
    "filter: a function of text": (
        "def country(row) -> str: ...\ntimed.filter(country)",
        r"filter\(country\): the function returns str, by its annotation",
        "return True or False",
    ),
    "select: unknown column": ('timed.select("merchnt")', "'merchnt'", "did you mean 'merchant'"),
    "top: unknown column": (
        'timed.window_all(ps.Tumbling("1m")).top(3, by="amuont")',
        "'amuont'",
        "did you mean 'amount'",
    ),
    # identity
    "no uid": ("windows.aggregate(n=ps.count()).sink_to(sink, uid='out')", r"has no uid", r"add \.uid\('\.\.\.'\)"),
    "no uid of a sink": ("plain.sink_to(sink)", "has no uid", r"add uid='\.\.\.'"),
    "a uid twice": ("plain.sink_to(sink, uid='timed')", "uid 'timed' is given twice", "a unique uid"),
    "two sinks into one folder": (
        "timed.sink_to(FileSink('/tmp/out'), uid='a')\nplain.sink_to(FileSink('/tmp/x/../out/'), uid='b')",
        rf"two sinks write to the folder /tmp/out: Sink: a at job.py:{LINE} and Sink: b at job.py:{LINE + 1}",
        "give each sink its own folder, or join the streams with .union",
    ),
    "a uid that is no name": ("plain.sink_to(sink, uid='my sink')", "'my sink' cannot be used", "letters"),
    "a job's name that is none": ("plain.sink_to(sink, uid='s')\nenv.execute('my job')", "'my job'", "letters"),
    # event time
    "watermarks: unknown column": (
        'env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="time"))',
        "no column 'time'",
        "columns: merchant",
    ),
    "watermarks: no strategy": ("env.from_source(source, watermarks='5s')", "'5s'", "WatermarkStrategy"),
    "watermarks: a unit of a datetime": (
        'env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts", unit="s"))',
        r"unit='s' is for integers, and column 'ts' is timestamp\[us, tz=UTC\]",
        "declare the field as int; or leave unit out, and set timestamp_unit='s' on a KafkaSource or FileSource",
    ),
    "watermarks: a unit of nanoseconds of a datetime": (
        'plain.assign_timestamps_and_watermarks(ps.WatermarkStrategy.no_watermarks(timestamp="ts", unit="ns"))',
        "unit='ns' is for integers, and column 'ts' is timestamp",
        "declare the field as int, or leave unit out",
    ),
    "watermarks: a unit of two datetimes": (
        (
            'marks = ps.WatermarkStrategy.punctuated(timestamp="ts", watermark=pl.col("ts"), unit="us")\n'
            "env.from_source(source, watermarks=marks)"
        ),
        "unit='us' is for integers, and column 'ts' and the watermark are timestamp",
        "declare the field as int",
    ),
    "watermarks: a unit that is none": (
        'env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="amount", unit="minutes"))',
        "unit='minutes' is not known",
        "one of s, ms, us, ns",
    ),
    "window without event time": ('plain.key_by("merchant").window(ps.Tumbling("1m"))', "no event time", "watermarks="),
    "window_all without event time": ('plain.window_all(ps.Tumbling("1m"))', "no event time", "watermarks="),
    "window: no duration": (
        'keyed.window(ps.Tumbling("1 moment"))',
        "'1 moment' is not a duration",
        "'500ms', '5s', '1m'",
    ),
    "window: a function for a gap": (
        "keyed.window(ps.Session(lambda row: 5))",
        "the function <lambda> is not a duration",
        "'500ms', '5s', '1m'",
    ),
    "window: a text": ('keyed.window("1m")', "'1m'", "ps.Tumbling"),
    "a union with and without event time": (
        "timed.union(plain)",
        "one stream has event time",
        "assign_timestamps_and_watermarks",
    ),
    "a union of other columns": (
        'timed.union(timed.select("merchant"))',
        "the other one lacks amount, country, ts",
        r"\.select\(",
    ),
    # streams
    "a sink on a window": ("windows.sink_to(sink, uid='x')", "no attribute 'sink_to'", "there are: .*aggregate"),
    "a method's name": ("timed.keyby('merchant')", "no attribute 'keyby'", "did you mean 'key_by'"),
    "a method without its call": ("timed.filter + 1", "'method' and 'int'", r"put \(\) after its name"),
    "a name of the package": ("ps.Tumblin('1m')", "has no .*'Tumblin'", "did you mean 'Tumbling'"),
    "a window of Kafka Streams": (
        "ps.Hopping('1m', '10s')",
        "penstock has no 'Hopping'",
        r"use ps\.Sliding\(size, slide",
    ),
    "a window of Flink": (
        "keyed.window(ps.TumblingEventTimeWindows.of(5))",
        "penstock has no 'TumblingEventTimeWindows'",
        r"use ps\.Tumbling\(size\)",
    ),
    "an import of Flink's environment": (
        "from penstock import StreamExecutionEnvironment",
        "cannot import name 'StreamExecutionEnvironment'",
        r"use ps\.Environment\(\)",
    ),
    "an import misspelt": ("from penstock import Tumblin", "cannot import name 'Tumblin'", "did you mean 'Tumbling'"),
    "a watermark strategy of Flink": (
        "ps.WatermarkStrategy.for_bounded_out_of_orderness(5)",
        "no attribute 'for_bounded_out_of_orderness'",
        r"use ps\.WatermarkStrategy\.bounded_out_of_orderness\('5s', timestamp='ts'\)",
    ),
    "a class's method misspelt": ("ps.WatermarkStrategy.monotonous()", "'monotonous'", "monotonic"),
    "a method of Flink": ("timed.add_sink(sink)", "no attribute 'add_sink'", r"use \.sink_to\(sink, uid='out'\)"),
    "a setting of Flink": (
        "env.enableCheckpointing(5000)",
        "no attribute 'enableCheckpointing'",
        r"use ps\.Environment\(checkpoint_interval='5s'\)",
    ),
    "process without a key": (
        process().replace("keyed.process", "timed.process"),
        "no keys|is for keyed streams",
        r"key_by",
    ),
    "process: a lambda": (
        "keyed.process(lambda row, ctx: [row])",
        "is no process function",
        r"ps.KeyedProcessFunction.*\.map\(f\)",
    ),
    "process: a class": (process(made="Last"), "it is a class", r"\.process\(Last\(\)\)"),
    "process: one row": (process(returns="Total"), "must return several rows, .* the class Total", r"Iterator\[Row\]"),
    "state: a dict": (
        process("last: ps.ValueState[dict] = ps.value_state()"),
        "the class dict has no Arrow type",
        "use int, float",
    ),
    "state: no annotation": (
        process("last = ps.value_state()"),
        "state 'last' has no type",
        r"annotate it: last: ps\.ValueState\[int\]",
    ),
    "state: only annotated": (
        process("last: ps.ValueState[int]"),
        "state 'last' is annotated",
        r"= ps\.value_state\(\)",
    ),
    "state: another kind": (
        process("last: ps.ValueState[int] = ps.list_state()"),
        r"state 'last' is annotated as ValueState, but ps\.list_state\(\) makes a ListState",
        r"annotate it: last: ps\.ListState\[int\] = ps\.list_state\(\)",
    ),
    "state: the type alone": (
        process("last: int = ps.value_state()"),
        r"state 'last' is annotated as int, but ps\.value_state\(\) makes a ValueState",
        r"annotate it: last: ps\.ValueState\[int\]",
    ),
    "state: a class": (
        process("last: ps.ValueState[int] = ps.ValueState()"),
        r"ValueState.__init__\(\) missing",
        r"declare a state in this way: count: ps\.ValueState\[int\] = ps\.value_state\(\)",
    ),
    "state: a type in place of a value": (
        process("last = ps.ValueState[int]"),
        r"state 'last' is a type",
        r"annotate it and give it a value: last: ps\.ValueState\[int\] = ps\.value_state\(\)",
    ),
    "state: a map without the type of its values": (
        process("last: ps.MapState[str] = ps.map_state()"),
        "Too few arguments for .*MapState",
        r"in this way: seen: ps\.MapState\[str, int\] = ps\.map_state\(\)",
    ),
    "state: a default": (
        process("last: ps.ValueState[int] = ps.value_state(0)"),
        r"value_state\(\) takes 0 positional arguments but 1 was given",
        r"value\(\) is None before the first update: write self\.count\.value\(\) or 0",
    ),
    "state: a default by name": (
        process("last: ps.ValueState[int] = ps.value_state(default=0)"),
        "unexpected keyword argument 'default'",
        r"value\(\) is None before the first update: write self\.count\.value\(\) or 0",
    ),
    "state: a value": (
        process("last: ps.ValueState[int] = 0"),
        "state 'last' is annotated, but 0 is no state",
        r"last: ps\.ValueState\[int\] = ps\.value_state\(\)",
    ),
    "state: a field's default of another type": (
        "from typing import NamedTuple\nclass Seen(NamedTuple):\n    n: int = 'none'\n"
        + process("last: ps.ValueState[Seen] = ps.value_state()"),
        "state 'last': the default of n is 'none', which is no int64",
        r"for example n: int = 0, or `n: int \| None = None`",
    ),
    "state: a name and a type": (
        process("last = ps.value_state('last', int)"),
        r"value_state\(\) takes 0 positional arguments but 2 were given",
        r"in this way: count: ps\.ValueState\[int\] = ps\.value_state\(\)",
    ),
    "state: no function": (
        process("last: ps.ReducingState[int] = ps.reducing_state()"),
        r"reducing_state\(\) missing 1 required positional argument: 'function'",
        r"in this way: most: ps\.ReducingState\[int\] = ps\.reducing_state\(max\)",
    ),
    "state: assigned": (
        process().replace("yield", "self.last = 1; yield"),
        rf"process\(Last\): Last assigns to its state: self.last = \.\.\. at job\.py:{LINE + 3} in process",
        r"write self\.last\.update\(value\)",
    ),
    "state: added to": (
        process().replace("yield", "self.last += row.amount; yield"),
        rf"Last assigns to its state: self.last = \.\.\. at job\.py:{LINE + 3} in process",
        r"write self\.last\.update\(value\)",
    ),
    "state: deleted": (
        process().replace("yield", "del self.last; yield"),
        rf"Last deletes its state: del self.last at job\.py:{LINE + 3} in process",
        r"write self\.last\.clear\(\)",
    ),
    "state: a list assigned where the class is opened": (
        process("last: ps.ListState[int] = ps.list_state()\n    def open(self, ctx):\n        self.last = []"),
        rf"Last assigns to its state: self.last = \.\.\. at job\.py:{LINE + 3} in open",
        r"write self\.last\.set\(values\)",
    ),
    "state: made in the constructor": (
        process("def __init__(self):\n        self.last = ps.value_state()"),
        r"state 'last' is an attribute of the object",
        r"declare it in the class: last: ps\.ValueState\[int\] = ps\.value_state\(\)",
    ),
    "state: a method that it has not": (
        "ps.value_state().get()",
        "'ValueState' object has no attribute 'get'",
        "there are: clear, update, value",
    ),
    "state: a map by float": (
        process("last: ps.MapState[float, int] = ps.map_state()"),
        "cannot be .* a map key",
        "use|key",
    ),
    "map without a type": ("timed.map(lambda row: (row, 1))", "output type is not known", "returns=Row"),
    "map: no function": ("timed.map(7, returns=Total)", "map", "function"),
    "map_async of a function": ("timed.map_async(lambda row: row, returns=Total)", "coroutine", "async def|map"),
    "map_async: no capacity": (
        "async def f(row) -> Total: ...\ntimed.map_async(f, capacity=0)",
        "must be positive",
        "capacity=100",
    ),
    "connect without a key": ("timed.connect(keyed)", "this stream has no key", r"key_by"),
    "connect to a stream without a key": ("keyed.connect(timed)", "the other stream has no key", r"broadcast\(\)"),
    "join with no stream": ("timed.join(7)", "7 is not a stream", "give the stream itself"),
    "a side output that is none": (
        "windows.aggregate(n=ps.count()).side_output('late')",
        "no side output 'late'",
        r"late_to\(tag\)",
    ),
    "another environment": (
        'other = ps.Environment(1)\ntimed.union(other.from_source(source, watermarks=late, uid="o"))',
        "different environments",
        "one ps.Environment",
    ),
    "an output that goes nowhere": ("windows.aggregate(n=ps.count()).uid('w')", "has no reader", r"\.sink_to"),
    "rows without a type": ("env.from_collection([{'n': 1}])", "row type is not known", "a Polars DataFrame"),
    "rows of another type": ("env.from_collection([{'n': 1}], Total)", "a row has no field 'merchant'", "merchant, n"),
    "a name for print": ("plain.print('my rows')", "'my rows' cannot be used", "letters"),
    "collect from an endless source": (
        ENDLESS.replace('.sink_to(sink, uid="s")', ".execute_and_collect()"),
        "would never end",
        "limit=100",
    ),
    "a limit of 0": ("plain.execute_and_collect(limit=0)", "limit must be at least 1, not 0", "leave it out"),
    # settings
    "an unknown setting": ("ps.Environment(paralellism=2)", "paralellism", "did you mean 'parallelism'"),
    "parallelism beyond the key groups": (
        WIDE,
        "parallelism 8 is more than the 4 key groups",
        "key_groups",
    ),
    "parallelism 0": ("plain.sink_to(sink, uid='s').set_parallelism(0)", "parallelism 0|must be|at least", "."),
    "a duration that is none": (
        "ps.Environment(checkpoint_interval='soon')",
        "'soon' is not a duration",
        "'500ms', '5s', '1m'",
    ),
    "a size that is none": ("ps.Environment(managed_memory='much')", "'much' is not a size", "256MB"),
    "a restart strategy that is none": (
        "ps.Environment(restart='always')",
        "restart.kind='always' is not known",
        "one of fixed-delay, exponential-delay",
    ),
    "a parallelism that is none": (
        "ps.Environment(parallelism='two')",
        "ps.Environment: parallelism='two' is not a whole number",
        "for example parallelism=1",
    ),
    "a backend that is none": ("ps.Environment(state_backend='redis')", "redis", "hashmap"),
    # connectors
    "a source that is none": ("env.from_source('payments')", "'payments' is not a source", "KafkaSource"),
    "a sink that is none": ("plain.sink_to('totals', uid='s')", "'totals' is not a sink", "KafkaSink"),
    "kafka: no argument topic": (
        'KafkaSource("h:1", schema=Payment)',
        r"KafkaSource.__init__\(\) missing 1 required positional argument: 'topic'",
        r"add topic=\.\.\.; there are: bootstrap, topic, schema, format",
    ),
    "kafka: topics for topic": (
        'KafkaSource("h:1", topics=["a"], schema=Payment)',
        r"job.py:\d+: KafkaSource has no argument 'topics'",
        r"did you mean 'topic'\? there are: bootstrap, topic, schema, format, start",
    ),
    "kafka: topics of a sink": (
        'KafkaSink("h:1", topics="a", key="k")',
        r"job.py:\d+: KafkaSink has no argument 'topics'",
        r"did you mean 'topic'\? there are: bootstrap, topic, format, key",
    ),
    "kafka: a topic that is none": (
        'KafkaSource("h:1", topic=7, schema=Payment)',
        "KafkaSource: topic=7 is neither a topic's name nor several",
        "topic='orders'",
    ),
    "kafka: rows without a type": ('KafkaSource("h:1", topic="t")', "needs schema=", "schema=Order"),
    "kafka: a schema of raw records": (
        'KafkaSource("h:1", topic="t", format="raw", schema=Payment)',
        "has the columns key, value",
        "leave schema out",
    ),
    "kafka: a topic twice": ('KafkaSource("h:1", topic=["a", "a"], schema=Payment)', "named twice", "each topic once"),
    "kafka: no topic of a sink": ('KafkaSink("h:1")', "missing .* 'topic'", r"add topic=\.\.\."),
    "watermarks: no column": (
        "ps.WatermarkStrategy.monotonic()",
        "missing 1 required keyword-only argument: 'timestamp'",
        r"add timestamp=\.\.\.; there are: timestamp, unit, exact",
    ),
    "files: no schema": ('FileSource("in")', "argument: 'schema'", r"add schema=\.\.\.; there are: path, schema"),
    "kafka: an unknown format": (
        'KafkaSource("h:1", topic="t", schema=Payment, format="avro")',
        "format='avro' is not known",
        "json, arrow, raw; .*raw",
    ),
    "kafka: an unknown argument": (
        'KafkaSource("h:1", topic="t", schema=Payment, schema_registry="u")',
        "no argument 'schema_registry'",
        "bootstrap, topic, schema",
    ),
    "kafka: an unknown delivery": (
        'KafkaSink("h:1", topic="t", delivery="exactly_once")',
        "'exactly_once' is not known",
        "exactly-once",
    ),
    "kafka: a start that is none": (
        'KafkaSource("h:1", topic="t", schema=Payment, start="earlist")',
        "'earlist'",
        "'earliest'",
    ),
    "kafka: a topic by function": (
        'KafkaSink("h:1", topic=lambda row: row.country)',
        "topic=the function <lambda> is not a topic's name",
        "one sink for each",
    ),
    "kafka: no topic": ('KafkaSink("h:1", topic="")', "needs an address and a topic", r"KafkaSink\('host:9092'"),
    "kafka: a key that is no column": (
        "plain.sink_to(KafkaSink('h:1', topic='t', key='merch'), uid='s')",
        "'merch'",
        "merchant",
    ),
    "kafka: a secret written out": (
        'KafkaSource("h:1", topic="t", schema=Payment, properties={"sasl.password": "x"})',
        "is a secret",
        r"\$\{ENV:SASL_PASSWORD\}",
    ),
    "exactly once without checkpoints": (
        ENDLESS,
        "without checkpoints nothing would ever be published",
        "checkpoint_interval",
    ),
    # in the way of SQL, pandas or plain Python
    "filter: SQL": (
        'timed.filter("amount > 5")',
        "'amount > 5' is not a function",
        r"for example pl\.col\('amount'\) > 5",
    ),
    "filter: and": (
        'timed.filter(pl.col("amount") > 1 and pl.col("amount") < 5)',
        "TypeError: the truth value of an Expr is ambiguous",
        r"use &, \| and ~",
    ),
    "key: a list": (
        'timed.key_by(["merchant", "country"])',
        r"\['merchant', 'country'\] is not a column's name",
        r"each column by itself: \.key_by\('merchant', 'country'\)",
    ),
    "key: names in one text": (
        'timed.key_by("merchant, country")',
        "'merchant, country' is not a column's name",
        r"\.key_by\('merchant', 'country'\)",
    ),
    "aggregate: an expression": (
        'windows.aggregate(n=ps.sum(pl.col("amount") * 2))',
        r"ps\.sum: .* is not a column's name",
        r"\.with_columns\(x=\.\.\.\), then ps\.sum\('x'\)",
    ),
    "aggregate: a number": ("windows.aggregate(n=ps.max(5))", r"ps\.max: 5 is not a column's name", r"ps\.max\('x'\)"),
    "with_columns: a function": (
        "timed.with_columns(x=lambda row: row.amount)",
        "cannot create expression literal for value of type function",
        r"a function of a row is for \.map\(f\)",
    ),
    "a column by brackets": ('timed["amount"]', "not subscriptable", r"\.filter\(pl\.col\('amount'\) > 5\)"),
    "a loop over a stream": ("for row in timed:\n    pass", "not iterable", r"\.execute_and_collect\(limit=10\)"),
    "the length of a stream": ("len(timed)", r"has no len\(\)", r"ps\.count\(\)"),
    "a union with a list": ("timed.union([timed])", "union: a list is not a stream", "several one by one"),
    "parallelism as text": (
        "plain.sink_to(sink, uid='s').set_parallelism('2')",
        "parallelism '2' is not a number of subtasks",
        "use 1 or more",
    ),
    "count window: text": (
        "keyed.count_window('10')",
        r"count_window\('10'\) is not a number of rows",
        "use 1 or more",
    ),
    "process without ctx": (
        CLASS.replace(", ctx)", ")").format(state="pass", returns="Iterator[Total]", made="Last()"),
        "does not take a row and the context: too many positional arguments",
        r"def process\(self, row, ctx\)",
    ),
    "process: async": (
        CLASS.replace("    def", "    async def").format(state="pass", returns="Iterator[Total]", made="Last()"),
        "its process method is a coroutine",
        r"write def, not async def; .*\.map_async\(f\)",
    ),
    "process: open without ctx": (
        process("def open(self):\n        pass"),
        "its open method does not take the context: too many positional arguments",
        r"def open\(self, ctx\)",
    ),
    "process: on_timer without a time": (
        process("def on_timer(self, ctx):\n        return []"),
        "its on_timer method does not take the time and the context: too many positional arguments",
        r"def on_timer\(self, timestamp, ctx\)",
    ),
    "process: process1 without ctx": (
        (
            "class Both(ps.KeyedCoProcessFunction):\n    def process1(self, row) -> Iterator[Total]: ...\n"
            "    def process2(self, row, ctx) -> Iterator[Total]: ...\nkeyed.connect(keyed).process(Both())"
        ),
        "its process1 method does not take a row and the context: too many positional arguments",
        r"def process1\(self, row, ctx\)",
    ),
    "process: close with ctx": (
        process("def close(self, ctx):\n        pass"),
        "its close method does not take self alone: missing a required argument: 'ctx'",
        r"def close\(self\)",
    ),
    "schema: no fields": (
        'class Empty(ps.Schema): ...\nenv.from_source(FileSource("in", Empty), uid="e")',
        "Empty has no fields",
        "user_id: int",
    ),
    "schema: a field without a type": (
        "class Wrong(ps.Schema):\n    amount = 1",
        "A non-annotated attribute was detected: `amount = 1`",
        "PENSTOCK_TRACEBACK=1",
    ),
    "key groups: 0": (
        ENDLESS.replace("checkpoint_interval=None", "checkpoint_interval='1s', key_groups=0"),
        "key_groups is 0, but has to be from 1 to 32768",
        "change this setting",
    ),
    "checkpoints every 0 s": (
        ENDLESS.replace("checkpoint_interval=None", "checkpoint_interval='0s'"),
        "checkpoint_interval_ms is 0, but has to be from 1",
        "'5s', or leave the setting out",
    ),
    "a root with one slash": (
        ENDLESS.replace("checkpoint_interval=None", "checkpoint_interval='1s', checkpoint_root='s3:/bucket/x'"),
        "checkpoint_root='s3:/bucket/x' is neither a folder nor an address",
        "write s3://bucket/x",
    ),
    "a job's name that is a number": (
        "plain.sink_to(sink, uid='s')\nenv.execute(5)",
        "job name 5 cannot be used",
        "letters",
    ),
    "kafka: a list of brokers": (
        'KafkaSource(["a:1", "b:1"], topic="t", schema=Payment)',
        r"KafkaSource: bootstrap=\['a:1', 'b:1'\] is not an address",
        "'host1:9092,host2:9092'",
    ),
    "kafka: a URL": (
        'KafkaSink("http://localhost:9092", topic="t")',
        "KafkaSink: bootstrap='http://localhost:9092' is the URL of a web server",
        "broker: 'localhost:9092'",
    ),
    "files: no folder": (
        "plain.sink_to(FileSink(''), uid='s')",
        "FileSink: '' is not a local folder",
        "every worker sees",
    ),
    # before key_by
    "a window without keys": (
        'timed.window(ps.Tumbling("1m"))',
        "no attribute 'window'",
        r"\.key_by\('column'\)\.window",
    ),
    "a join without keys": (
        'timed.interval_join(timed, "-1s", "1s")',
        "no attribute 'interval_join'",
        r"a\.key_by\('k'\)\.interval_join\(b\.key_by",
    ),
    # Python
    "a syntax error": ("env.execute(", r"SyntaxError: '\(' was never closed \(", r"correct `env\.execute\(`"),
    "a column's name without quotes": (
        "windows.aggregate(total=ps.sum(amount))",
        "NameError: name 'amount' is not defined",
        "the name of a column is a text: 'amount'",
    ),
    "an aggregate as a method": (
        'windows.sum("amount")',
        "has no attribute 'sum'",
        r"use \.aggregate\(total=ps\.sum\('column'\)\)",
    ),
    "lateness of a window's kind": (
        'keyed.window(ps.Tumbling("10s").allowed_lateness("5s"))',
        "has no attribute 'allowed_lateness'",
        r"use \.window\(\.\.\.\)\.allowed_lateness\('5s'\)",
    ),
    "spread keys with a lateness": (
        'timed.key_by("merchant", spread=4).window(ps.Tumbling("1m")).allowed_lateness("5s").aggregate(n=ps.count())',
        r"key_by\(spread=4\) does not support allowed lateness",
        "leave it out, or spread= of key_by",
    ),
    "an argument of a class misspelt": (
        'FileSource("in", schema=Payment, format="jsonl", on_bad_records="skip")',
        r"FileSource.__init__\(\) got an unexpected keyword argument 'on_bad_records'",
        "did you mean 'on_bad_record'",
    ),
    "an argument of a window misspelt": ('ps.Tumbling(length="1m")', "argument 'length'", "there are: size, offset"),
    "renamed: a text": ("ps.value_state(renamed='last')", "renamed='last' is not a dict of names", "renamed={"),
    "an argument of a state misspelt": ("ps.value_state(tll='1h')", "argument 'tll'", "did you mean 'ttl'"),
    "an argument of a method misspelt": ('keyed.window(windows="1m")', "argument 'windows'", "did you mean 'window"),
    "a package that is not installed": (
        "import no_such_package",
        "No module named 'no_such_package'",
        r"install it in this Python, /\S+; a module of yours: put it beside the job file",
    ),
    "an error of Python": ("1 / 0", "ZeroDivisionError: division by zero", "PENSTOCK_TRACEBACK=1"),
}


def said_of(folder, lines):
    """Return the one line that the command line would print of a job file."""
    (folder / "job.py").write_text(BEGIN + lines + END)
    with pytest.raises(PenstockError) as caught:
        planned(folder / "job.py", {}, "")
    return str(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_line_its_cause_and_the_way_out(tmp_path, mistake):
    lines, cause, way = MISTAKES[mistake]
    said = said_of(tmp_path, lines)
    assert re.match(r"job\.py:\d+: |\S*job\.py", said), said
    assert re.search(cause, said), said
    assert re.search(rf"\(.*{way}.*\)$", said, re.DOTALL), said
    assert "\n" not in said
    assert " at 0x" not in said
    assert len(re.findall(r"job\.py:\d+: ", said)) == 1, "the place is named once"


def test_names_of_other_systems_lead_to_names_that_exist():
    streams = (ps.KeyedStream, ps.WindowedStream, ps.Environment, StreamSink)
    methods = {name for kind in streams for name in dir(kind)}
    for name, way in ways().items():
        assert set(re.findall(r"\bps\.(\w+)", way)) <= set(ps.__all__), (name, way)
        assert set(re.findall(r"(?:^|[ ,]|stream|env)\.(\w+)\(", way)) <= methods, (name, way)


def test_a_name_of_another_system_is_explained_without_the_command_line_too():
    with pytest.raises(AttributeError, match=r"^penstock has no 'Hopping' \(use ps\.Sliding\(size, slide\)\)$"):
        _ = ps.Hopping


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 120
