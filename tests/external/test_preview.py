"""`penstock preview` of a topic: its messages as text; no consumer group comes into being."""

import json

from penstock.cli.start.preview import preview


def test_the_first_messages_of_a_topic(kafka, capsys):
    topic = kafka.topic("orders", 2)
    kafka.produce(topic, [b'{"n": 1}', b"\xff\xfe"], 0, keys=[b"a", None])
    before = {group.group_id for group in kafka.admin.list_consumer_groups().result().valid}
    preview(f"kafka://{kafka.bootstrap}/{topic}", limit=10, json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [("a", '{"n": 1}'), (None, "b'\\xff\\xfe'")]
    assert {row["topic"] for row in rows} == {topic}
    assert {group.group_id for group in kafka.admin.list_consumer_groups().result().valid} == before


def test_a_topic_without_messages(kafka, capsys):
    topic = kafka.topic("empty")
    preview(f"kafka://{kafka.bootstrap}/{topic}")
    assert f"{topic} has no rows" in capsys.readouterr().out
