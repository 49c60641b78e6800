"""Kafka for the backfill's bench: topics of orders as JSON, and the jars with which plain Spark reads them.

Called by `backfill`. A topic has one partition for each split. `ts` is an integer of microseconds, which both sides
read without parsing text.
"""

import shutil
import subprocess

import polars as pl
import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock_connectors.datagen.source import orders as generated
from penstock_lab.servers.provision import COPY_DEPENDENCIES, cache_root, fresh, locked
from penstock_lab.servers.spec import silent

LIMIT_S = 900
BATCH_ROWS = 100_000
#: Spark's connector with what it needs; PySpark has the excluded jars.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.bench</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version}</version>
      <exclusions>{exclusions}</exclusions>
    </dependency>
  </dependencies>
</project>
"""
EXCLUSION = "<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
EXCLUDED = (
    ("org.apache.hadoop", "*"), ("org.lz4", "*"), ("org.xerial.snappy", "*"), ("com.github.luben", "*"),
    ("org.slf4j", "*"), ("org.scala-lang", "*"), ("org.scala-lang.modules", "*"), ("com.google.code.findbugs", "*"),
    ("org.apache.spark", "spark-tags_2.13"),
)  # fmt: skip


def fill_topic(bootstrap, topic, pattern, rows):
    """Write the generated rows, one partition for each split; `rows` is the number of each."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, pattern.splits, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 400_000})
    for partition, count in enumerate(rows):
        for low in range(0, count, BATCH_ROWS):
            batch = generated(pattern, partition, low, min(BATCH_ROWS, count - low))
            frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(pl.col("ts").dt.timestamp("us"))
            for message in frame.select(pl.struct(pl.all()).struct.json_encode()).to_series():
                produce(producer, topic, message, partition)
    assert producer.flush(LIMIT_S) == 0, f"the broker at {bootstrap} does not take the rows of {topic}"


def produce(producer, topic, message, partition):
    """Give the producer a message, once it has room."""
    while True:
        try:
            producer.produce(topic, message, partition=partition)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def connector_jars():
    """Return the paths of the jars, of PySpark's version; Maven fetches them once for a machine."""
    place = cache_root() / "spark-kafka" / pyspark.__version__
    with locked("spark-kafka", silent):
        if not place.exists():
            stage = fresh(place.with_name(f"{place.name}.new"))
            stage.mkdir(parents=True)
            exclusions = "".join(EXCLUSION.format(group=group, artifact=artifact) for group, artifact in EXCLUDED)
            (stage / "pom.xml").write_text(POM.format(version=pyspark.__version__, exclusions=exclusions))
            maven = [shutil.which("mvn") or "mvn", "-B", "-ntp", COPY_DEPENDENCIES, "-DincludeScope=runtime"]
            done = subprocess.run(
                [*maven, f"-DoutputDirectory={stage}/libs"], cwd=stage, capture_output=True, text=True, timeout=LIMIT_S
            )
            assert done.returncode == 0, done.stdout[-2000:]
            (stage / "libs").rename(place)
            shutil.rmtree(stage)
    return sorted(map(str, place.glob("*.jar")))
