"""What can be said about Kafka sources and sinks without a broker: arguments, secrets, positions, keys."""

import datetime as dt
import inspect
import json

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.connector.sink import load_factory
from penstock.connector.source import SourceSpec
from penstock.core.errors import ConnectorError, GraphError, UndecidedOutputError, UnreachableError, UsageError
from penstock.core.schema import Schema, schema_from_text
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.client.metadata import connection_problem
from penstock_connectors.kafka.client.positions import require_positions, start_offsets, stop_offsets
from penstock_connectors.kafka.client.properties import check_properties, for_admin, for_kafka_python, resolve
from penstock_connectors.kafka.sink import KafkaSink, KafkaSinkFactory
from penstock_connectors.kafka.source import KafkaSource, KafkaSourceFactory
from penstock_connectors.kafka.write.payloads import encode, encode_keys
from penstock_connectors.kafka.write.transactions import MIN_RETENTION_MS, check_age, checkpoint_of, marker_of


@pytest.fixture
def env():
    return ps.Environment(checkpoint_interval="5s")


class Order(Schema):
    user_id: int
    ts: dt.datetime | None


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            "no:9092/bootstrap: Failed to resolve 'no:9092': Name or service not known (after 0ms in state CONNECT)",
            ("no:9092", "the host name no is not known"),
        ),
        (
            "127.0.0.1:9/bootstrap: Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state X)",
            ("127.0.0.1:9", "it refuses the connection"),
        ),
        (
            "b:9/1: SSL handshake failed: certificate (after 3ms in state X)",
            ("b:9/1", "SSL handshake failed: certificate"),
        ),
        ("GroupCoordinator", ("GroupCoordinator", "GroupCoordinator")),
    ],
)
def test_why_a_broker_cannot_be_reached_is_told_in_plain_words(event, told):
    assert connection_problem(event) == told


def test_a_source_and_a_sink_know_the_line_that_made_them(env):
    source = KafkaSource("b:9092", "a", Order)
    line = inspect.currentframe().f_lineno - 1
    sink = KafkaSink("b:9092", "t")
    env.from_source(source, uid="in").sink_to(sink, uid="out")
    (vertex,) = env.job_graph().vertices
    assert [o.where for o in vertex.operators] == [f"test_kafka_config.py:{line + n}" for n in (0, 2)]


ROWS = pa.schema([("user_id", pa.int64()), ("name", pa.string())])


def test_spec_survives_json():
    source = KafkaSource(
        "b:9092", ["a", "b"], Order, start={("a", 0): 5}, bounded={"timestamp": 7}, discovery_interval="5s"
    )
    spec = msgspec.json.decode(msgspec.json.encode(source.spec()), type=SourceSpec)
    assert spec == source.spec()
    assert schema_from_text(spec.schema) == source.row_schema == Order.arrow_schema()
    assert spec.config["start"] == {"offsets": [["a", 0, 5]]}
    assert (spec.bounded, spec.discovery_interval_ms) == (True, None)
    unbounded = KafkaSource("b:9092", "a", Order).spec()
    assert (unbounded.bounded, unbounded.discovery_interval_ms) == (False, 30_000)
    assert KafkaSource("b:9092", "a", Order, discovery_interval=None).spec().discovery_interval_ms is None


def test_factories_load_by_name():
    assert hasattr(load_factory(KafkaSource("b:9", "t", Order).spec().factory), "create_reader")
    assert hasattr(load_factory(KafkaSink("b:9", "t").spec(ROWS).factory), "create_committer")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": ""}, "needs an address and a topic"),
        ({"topic": ["a", "a"]}, "named twice"),
        ({"format": "xml"}, "format='xml' is not known"),
        ({"schema": None}, "needs schema="),
        ({"format": "raw"}, "leave schema out"),
        ({"on_bad_record": "ignore"}, "one of fail, skip, dead-letter"),
        ({"dead_letter_topic": "d"}, "add on_bad_record='dead-letter'"),
        ({"start": "yesterday"}, "is not a position"),
        ({"start": "group"}, "add group="),
        ({"start": {"a": 5}}, r"write \{\('t', 0\): 1234\}"),
        ({"start": {("a", 0): -1}}, "write"),
        ({"start": {"timestamp": "soon"}}, "is not a time"),
        ({"start": {"timestamp": True}}, "is not a time"),
        ({"start": {}}, "is not a position"),
        ({"start": {("t", -1): 0}}, r"start has \('t', -1\): 0 \(write \{\('t', 0\): 1234\}\)"),
        (
            {"start": {("x", 0): 0}},
            r"start names the topic 'x', which is not read \(did you mean 't'|start names.*: t\)",
        ),
        ({"bounded": {("x", 0): 9}}, r"bounded names the topic 'x', which is not read \(there are: t\)"),
        (
            {"start": {"timestamp": 1_700_000_000}},
            r"is 1970-01-20 in milliseconds \(seconds\? write 1700000000 \* 1000\)",
        ),
        (
            {"bounded": {"timestamp": 1_700_000_000_000_000}},
            r"is the year 5\d+ in milliseconds \(microseconds\? .* // 1000",
        ),
        ({"start": {"timestamp": -1}}, "is before 1970"),
        (
            {"start": {("t", 0): 10}, "bounded": {("t", 0): 5}},
            r"bounded ends partition 0 of topic 't' at 5, before its start, 10 \(the end has to be after the start\)",
        ),
        ({"bootstrap": "broker"}, r"bootstrap='broker' has no port \(write host and port: 'broker:9092'\)"),
        ({"bootstrap": "a:9092,b"}, r"'b' in bootstrap='a:9092,b' has no port"),
        ({"bootstrap": "a:9092,"}, r"bootstrap='a:9092,' has an empty address"),
        ({"bootstrap": "a:kafka"}, r"the port 'kafka' in bootstrap='a:kafka' is no number from 1 to 65535"),
        ({"bootstrap": "a:99999"}, "the port '99999' .* is no number from 1 to 65535"),
        ({"bootstrap": "kafka://a:1"}, r"'kafka://a:1' is the URL of another system \(write host and port .*'a:1'"),
        ({"bootstrap": "a: 9092"}, "the port ' 9092' .* is no number"),
        ({"group": 5}, r"group=5 is not a name"),
        ({"group": ""}, r"group='' is not a name"),
        (
            {"topic": "orders-.*"},
            r"topic='orders-\.\*' is a pattern.* \(name each topic: topic=\['orders', 'refunds'\]\)",
        ),
        ({"topic": "my topic"}, r"topic='my topic' cannot be a topic's name \(letters, digits, '\.', '_' and '-'"),
        ({"topic": "x" * 250}, "cannot be a topic's name .*249"),
        ({"on_bad_record": "dead-letter", "dead_letter_topic": "t"}, "it reads dead_letter_topic='t' itself"),
        ({"properties": ["a=b"]}, r"properties=\['a=b'\] is not a dict \(write properties=\{'client.id': 'orders'\}\)"),
        ({"properties": {1: "x"}}, "properties: 1 is not a property's name"),
        ({"properties": {"client.id": None}}, "property 'client.id' is None, not a text, a number or a bool"),
        ({"properties": {"client.id": {}}}, "property 'client.id' is {}, not a text"),
        ({"bounded": "now"}, "is not an end"),
        ({"discovery_interval": "often"}, "is not a duration"),
        ({"timestamp_unit": "ns"}, "one of auto, s, ms, us"),
        ({"begin": "earliest"}, "no argument 'begin'.*there are: bootstrap, topic, schema, format, start"),
        ({"properties": {"group.id": "x"}}, "use group="),
        (
            {"properties": {"max.poll.records": 500}},
            r"'max.poll.records' .*librdkafka has no such limit; fetch.max.bytes",
        ),
        ({"properties": {"enable.auto.commit": True}}, "positions belong to the checkpoint"),
        ({"properties": {"sasl.password": "hunter2"}}, r"write '\$\{ENV:SASL_PASSWORD\}'"),
    ],
)
def test_wrong_source_arguments_are_refused_with_the_way_out(options, words):
    arguments = {"bootstrap": "b:9092", "topic": "t", "schema": Order, **options}
    with pytest.raises(UsageError, match=words):
        KafkaSource(**arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": ""}, "needs an address and a topic"),
        ({"delivery": "twice"}, "one of exactly-once"),
        ({"format": "csv"}, "one of json, arrow, raw"),
        ({"transaction_timeout": "long", "delivery": "exactly-once-2pc"}, "is not a duration"),
        ({"transaction_timeout": "1m"}, r"delivery='exactly-once' does not use transaction_timeout \(leave it out, or"),
        (
            {"chunk_bytes": 1_000, "delivery": "at-least-once"},
            r"delivery='at-least-once' does not use chunk_bytes \(leave it out, or write delivery='exactly-once'\)",
        ),
        (
            {"chunk_bytes": 1_000, "delivery": "exactly-once-2pc"},
            "delivery='exactly-once-2pc' does not use chunk_bytes",
        ),
        ({"partition": 1}, "no argument 'partition'"),
        ({"key": "nosuch"}, "'nosuch' is not in the rows.*user_id, name"),
        ({"key": "name", "format": "arrow"}, "holds many rows and has no key"),
        ({"format": "raw"}, "column named 'value'"),
        ({"properties": {"transactional.id": "x"}}, r"\(leave it out: it is derived from job, uid"),
        ({"key": ["name"]}, r"key=\['name'\] is not a column's name"),
        ({"key": lambda row: row}, "key=the function <lambda> is not a column's name"),
        ({"chunk_bytes": "1MB"}, "chunk_bytes='1MB' is not a number of bytes"),
        ({"topic": "a/b"}, "topic='a/b' cannot be a topic's name"),
        ({"properties": {"ssl.key.password": "x"}}, "is a secret"),
    ],
)
def test_wrong_sink_arguments_are_refused_with_the_way_out(options, words):
    with pytest.raises(UsageError, match=words):
        KafkaSink(**{"bootstrap": "b:9092", "topic": "t", **options}).spec(ROWS)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"sasl.mechansim": "PLAIN"}, "No such configuration property: .*did you mean 'sasl.mechanism'"),
        ({"security_protocol": "SSL"}, "No such configuration property: .*did you mean 'security.protocol'"),
        ({"fetch.max.bites": "1"}, "did you mean 'fetch.max.bytes'"),
        ({"compression.typ": "lz4"}, "did you mean 'compression.type'"),
        ({"compression.type": "zipp"}, 'Invalid value "zipp" for configuration property "compression.codec"'),
        ({"isolation.level": "read_commited"}, 'Invalid value "read_commited"'),
        ({"fetch.min.bytes": "many"}, 'Invalid value .*"fetch.min.bytes"'),
        ({"security.protocol": "SSSL"}, 'Invalid value "SSSL"'),
        ({"key.deserializer": "x"}, r'No such configuration property: "key.deserializer" \(.*CONFIGURATION.md'),
        ({"security.protocol": "SASL_SSL"}, r"No provider for SASL mechanism GSSAPI.*set sasl\.mechanisms.*'PLAIN'"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nope.pem"},
            r"ssl\.ca\.location failed.* '/nope\.pem' .*JobManager and TaskManagers",
        ),
    ],
)
def test_wrong_properties_are_refused_before_anything_connects(properties, words):
    for source_or_sink in (
        lambda: KafkaSourceFactory().validate(KafkaSource("127.0.0.1:1", "t", Order, properties=properties).spec()),
        lambda: KafkaSinkFactory().validate(KafkaSink("127.0.0.1:1", "t", properties=properties).spec(ROWS), 1000),
    ):
        with pytest.raises(ConnectorError, match=words) as raised:
            source_or_sink()
        assert not isinstance(raised.value, UnreachableError)


def test_schema_json_cannot_hold_is_refused():
    with pytest.raises(GraphError, match="cannot be read from JSON"):
        KafkaSource("b:9", "t", pa.schema([("x", pa.duration("s"))]))
    with pytest.raises(GraphError, match="takes 'key' as binary or text"):
        KafkaSink("b:9", "t", "raw").spec(pa.schema([("key", pa.int64()), ("value", pa.binary())]))


def test_secrets_stay_references_until_the_connecting_process(monkeypatch):
    properties = {"sasl.password": "${ENV:KAFKA_PW}", "sasl.username": "${ENV:KAFKA_USER}", "fetch.wait.max.ms": 5}
    source = KafkaSource("b:9092", "t", Order, properties=properties)
    assert "hunter2" not in json.dumps(source.spec().config)
    with pytest.raises(ConnectorError, match="environment variable KAFKA_PW is not set in this process"):
        resolve("b:9092", source.spec().config["properties"])
    monkeypatch.setenv("KAFKA_PW", "hunter2")
    monkeypatch.setenv("KAFKA_USER", "ann")
    resolved = resolve("b:9092", source.spec().config["properties"])
    assert resolved["sasl.password"] == "hunter2"
    assert resolved["bootstrap.servers"] == "b:9092"
    assert "fetch.wait.max.ms" not in for_admin(resolved)


@pytest.mark.parametrize("name", ["ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret", "my.token"])
def test_every_kind_of_secret_is_recognised(name):
    with pytest.raises(UsageError, match="is a secret"):
        check_properties({name: "literal"}, "KafkaSink")
    assert check_properties({name: "${ENV:X}"}, "KafkaSink") == {name: "${ENV:X}"}


def test_translation_for_kafka_python():
    options = for_kafka_python(
        {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "linger.ms": "5",
        }
    )
    assert options == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
        "reconnect_backoff_max_ms": 1000,
        "request_timeout_ms": 5_000,
    }


class FakeCluster:
    """Two partitions of `t`, offsets 10 to 20 and 30 to 40; records of time 15 and later are in the first alone."""

    EDGES = {("t", 0): (10, 20), ("t", 1): (30, 40)}

    def offsets(self, places, at, *, committed=True):
        if isinstance(at, int):
            return {place: 15 if place == ("t", 0) and at <= 15 else -1 for place in places}
        return {place: self.EDGES[place][0 if at == "earliest" else 1] for place in places}

    def group_offsets(self, group, places):
        return {("t", 0): 12}


PLACES = [("t", 0), ("t", 1)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [10, 30]),
        ("latest", [20, 40]),
        ("group", [12, 30]),
        ({"timestamp": 15}, [15, 40]),
        ({"offsets": [["t", 1, 33]]}, [10, 33]),
    ],
)
def test_start_offsets(start, expected):
    found = start_offsets(start, PLACES, FakeCluster(), "g")
    assert [found[place] for place in PLACES] == expected


@pytest.mark.parametrize(
    ("bounded", "expected"),
    [
        (None, [None, None]),
        ("latest", [20, 40]),
        ({"timestamp": 15}, [15, 40]),
        ({"offsets": [["t", 1, 33]]}, [0, 33]),
    ],
)
def test_stop_offsets(bounded, expected):
    found = stop_offsets(bounded, PLACES, FakeCluster())
    assert [found.get(place) for place in PLACES] == expected


def test_offsets_of_an_unknown_partition_are_refused():
    with pytest.raises(
        ConnectorError, match=r"partition 7 of topic 't', which does not exist \(its partitions are 0, 1\)"
    ):
        start_offsets({"offsets": [["t", 7, 1]]}, PLACES, FakeCluster(), None)


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (
            {"start": {"offsets": [["t", 2, 1]]}},
            "start=: offsets are given for partition 2 of topic 't', which does not",
        ),
        ({"bounded": {"offsets": [["t", 2, 1]]}}, "bounded=: offsets are given for partition 2 of topic 't'"),
        (
            {"start": {"offsets": [["t", 1, 41]]}},
            r"start=: offset 41 of partition 1 of topic 't' is beyond its end, 40",
        ),
    ],
)
def test_positions_that_the_topic_has_not_are_refused_when_the_job_is_submitted(position, words):
    with pytest.raises(ConnectorError, match=f"KafkaSource: {words}"):
        require_positions({"start": "earliest", "bounded": None, **position}, {"t": [0, 1]}, FakeCluster())


def test_positions_that_the_topic_has_are_taken():
    config = {"start": {"offsets": [["t", 1, 40]]}, "bounded": {"offsets": [["t", 1, 99]]}}
    require_positions(config, {"t": [0, 1]}, FakeCluster())
    require_positions({"start": {"timestamp": 1}, "bounded": None}, {"t": [0, 1]}, FakeCluster())


def test_keys_of_every_type():
    day = pa.array([0, None], pa.date32())
    assert encode_keys(pa.array([1, None, -5])).to_pylist() == ["1", None, "-5"]
    assert encode_keys(pa.array(["é", None, ""])).to_pylist() == ["é", None, ""]
    assert encode_keys(pa.array([b"\xff", None])).to_pylist() == [b"\xff", None]
    assert encode_keys(pa.array([1.5, None])).to_pylist() == ["1.5", None]
    assert encode_keys(day).to_pylist() == ['"1970-01-01"', None]
    assert encode_keys(pa.array([[1, 2], None], pa.list_(pa.int64()))).to_pylist() == ["[1,2]", None]


def test_messages_by_format():
    rows = pa.record_batch({"key": [b"k", None], "value": [b"v", None]})
    values, keys = encode(rows, {"format": "raw", "key": None})
    assert (values.to_pylist(), keys.to_pylist()) == ([b"v", None], [b"k", None])
    values, keys = encode(pa.record_batch({"id": [1, 2]}), {"format": "json", "key": "id"})
    assert (values.to_pylist(), keys.to_pylist()) == (['{"id":1}', '{"id":2}'], ["1", "2"])
    values, keys = encode(pa.record_batch({"id": [1, 2]}), {"format": "arrow", "key": None})
    assert (len(values), keys) == (1, None)


def test_markers_order_by_checkpoint_and_chunk():
    places = [(0, 0), (0, 1), (1, 0), (1, 65_534), (2, 0), (10**9, 3)]
    markers = [marker_of(*place) for place in places]
    assert markers == sorted(set(markers))
    assert [checkpoint_of(marker) for marker in markers] == [checkpoint for checkpoint, _ in places]
    assert checkpoint_of(-1) == -1
    with pytest.raises(ValueError, match="at most 65535 chunks"):
        marker_of(1, 65_535)


def test_age_of_output_without_marker():
    hour = 3_600_000
    item = Committable(id="a", uid="u", run_id="r", subtask=0, checkpoint_id=3, marker_group="g", rows=5, created_ms=1)
    asked = []

    def retention():
        asked.append(1)
        return 24 * hour

    check_age([item], {"g": -1}, MIN_RETENTION_MS, retention)
    assert asked == []
    check_age([item], {"g": -1}, MIN_RETENTION_MS + 1, retention)
    assert asked == [1]
    check_age([item], {"g": -1}, 23 * hour, retention)
    check_age([item], {"g": 0}, 999 * hour, retention)
    check_age([msgspec.structs.replace(item, created_ms=0)], {}, 999 * hour, retention)
    with pytest.raises(UndecidedOutputError, match="5 records of checkpoint 3"):
        check_age([item], {}, 25 * hour, retention)
    with pytest.raises(UndecidedOutputError):
        check_age([item], {}, 8 * 24 * hour, lambda: None)
