"""Kafka for the backfill's bench: topics of orders as JSON, and the jars with which plain Spark reads them.

Called by `backfill`. A topic has one partition for each split. `ts` is an integer of microseconds, which both sides
read without parsing text.
"""

import sys

import polars as pl
import pyspark

from penstock_connectors.datagen.source import orders as generated
from penstock_lab.bench.jobs.topics import create, fill
from penstock_lab.servers.provision import cache_root, fetch_jars, locked

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


def fill_topic(bootstrap, topic, pattern, counts):
    """Write the generated rows, one partition for each split; `counts` is the number of each."""
    create(bootstrap, topic, pattern.splits)
    fill(bootstrap, topic, messages(pattern, counts))


def messages(pattern, counts):
    """Yield partition, key and value of each message."""
    for partition, count in enumerate(counts):
        for low in range(0, count, BATCH_ROWS):
            batch = generated(pattern, partition, low, min(BATCH_ROWS, count - low))
            frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(pl.col("ts").dt.timestamp("us"))
            for value in frame.select(pl.struct(pl.all()).struct.json_encode()).to_series():
                yield partition, None, value.encode()


def connector_jars():
    """Return the paths of the jars, of PySpark's version; Maven fetches them once for a machine."""
    home = cache_root() / "spark-kafka" / pyspark.__version__
    with locked("spark-kafka", tell):
        if not (home / "libs").exists():
            exclusions = "".join(EXCLUSION.format(group=group, artifact=artifact) for group, artifact in EXCLUDED)
            pom = POM.format(version=pyspark.__version__, exclusions=exclusions)
            fetch_jars("Spark's Kafka connector", home, pom, tell)
    return sorted(map(str, (home / "libs").glob("*.jar")))


def tell(line):
    """Print a line of progress; standard output has the figures."""
    print(line, file=sys.stderr, flush=True)
