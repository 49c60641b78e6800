"""`penstock preview SOURCE`: the first rows of a Kafka topic or a file; no offset is committed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from penstock.cli.options import JsonOption, say
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

#: Characters of a line of the table; a terminal wraps it, and a file keeps it.
_WIDTH = 1_000
_WAYS = "use kafka://HOST:PORT/TOPIC, or a .parquet, .jsonl or .csv file"


def preview(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="kafka://HOST:PORT/TOPIC, or a file.")],
    *,
    limit: Annotated[int, typer.Option(help="Number of rows.", min=1)] = 20,
    latest: Annotated[
        bool, typer.Option("--latest", help="Wait for new messages instead of reading old ones.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print the first rows of a Kafka topic or a file.

    Offsets of consumer groups stay as they are.
    """
    rows = _of_topic(source, limit, latest=latest) if source.startswith("kafka://") else _of_file(source, limit)
    if json:
        say(rows.write_ndjson().rstrip())
        return
    import polars as pl

    with pl.Config(
        tbl_rows=limit, tbl_cols=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=200, tbl_width_chars=_WIDTH
    ):
        say(str(rows))
    if not rows.height:
        say(f"{source} has no rows")


def _of_topic(source: str, limit: int, *, latest: bool) -> pl.DataFrame:
    """Return messages as text columns; bytes that are no text are shown as such."""
    import polars as pl

    from penstock.api.building.collection import collect
    from penstock.api.environment import Environment
    from penstock.client.in_process import InProcessExecutor
    from penstock_connectors.kafka import KafkaSource

    place = urlsplit(source)
    topic = place.path.strip("/")
    if not place.netloc or not topic:
        raise UsageError(f"{source} names no broker and topic", hint=_WAYS)
    environment = Environment()
    if latest:
        messages = KafkaSource(place.netloc, topic=topic, format="raw", start="latest")
    else:
        messages = KafkaSource(place.netloc, topic=topic, format="raw", start="earliest", bounded="latest")
    stream = environment.from_source(messages, uid="preview")
    rows = collect(environment, stream.flow, "preview", limit, InProcessExecutor())
    binary = [name for name, kind in rows.schema.items() if kind == pl.Binary]
    return rows.with_columns(pl.col(name).map_elements(_text, pl.String) for name in binary)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return repr(data)


def _of_file(source: str, limit: int) -> pl.DataFrame:
    import polars as pl

    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no file {source}", hint=_WAYS)
    try:
        match path.suffix:
            case ".parquet":
                return pl.scan_parquet(path).head(limit).collect()
            case ".jsonl":
                return pl.scan_ndjson(path).head(limit).collect()
            case ".csv":
                return pl.scan_csv(path).head(limit).collect()
            case _:
                raise UsageError(f"{source} has no known format", hint=_WAYS)
    except pl.exceptions.PolarsError as error:
        msg = f"{source} cannot be read as {path.suffix}: {str(error).splitlines()[0]}"
        raise UsageError(msg, hint="look at the file, or rename it if it has another format") from error
