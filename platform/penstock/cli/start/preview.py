"""`penstock preview SOURCE`: the first rows of a Kafka topic, a file or a folder; no offset is committed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from penstock.cli.options import say
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

#: Characters of a line of the table; a terminal wraps it, and a file keeps it.
_WIDTH = 1_000
_FORMATS = (".parquet", ".jsonl", ".csv")
_WAYS = "use kafka://HOST:PORT/TOPIC, a .parquet, .jsonl or .csv file, or a folder with such files"


def preview(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="kafka://HOST:PORT/TOPIC, a file, or a folder.")],
    *,
    limit: Annotated[int, typer.Option(help="Number of rows.", min=1)] = 20,
    latest: Annotated[
        bool, typer.Option("--latest", help="Wait until LIMIT new messages have arrived, instead of reading old ones.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object a row.")] = False,
) -> None:
    """Print the first rows of a Kafka topic, a file or a folder.

    Offsets of consumer groups stay as they are.
    """
    if source.startswith("kafka://"):
        rows = _of_topic(source, limit, latest=latest)
    else:
        rows = _of_files(_files_of(source), limit)
    if json:
        if rows.height:
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
        typer.echo(f"waiting for {limit} new messages of topic {topic}; Ctrl-C ends", err=True)
        messages = KafkaSource(place.netloc, topic=topic, format="raw", start="latest")
    else:
        messages = KafkaSource(place.netloc, topic=topic, format="raw", start="earliest", bounded="latest")
    stream = environment.from_source(messages, uid="preview")
    rows = collect(environment, stream.flow, "preview", limit, executor=InProcessExecutor())
    binary = [name for name, kind in rows.schema.items() if kind == pl.Binary]
    return rows.with_columns(pl.col(name).map_elements(_text, pl.String) for name in binary)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return repr(data)


def _files_of(source: str) -> list[Path]:
    """Return a file, or the files of a folder that a file source would read.

    Raises:
        UsageError: there is none, or their formats are unknown or differ.
    """
    path = Path(source)
    found = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in found if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise UsageError(f"there is no file {'in ' if path.is_dir() else ''}{source}", hint=_WAYS)
    unknown = [file for file in files if file.suffix not in _FORMATS]
    if unknown:
        raise UsageError(f"{unknown[0]} has no known format", hint=_WAYS)
    formats = sorted({file.suffix for file in files})
    if len(formats) > 1:
        msg = f"{source} has files of several formats: {', '.join(formats)}"
        raise UsageError(msg, hint="give one of the files")
    return files


def _of_files(files: list[Path], limit: int) -> pl.DataFrame:
    """Return the first rows of files of one format, in the order of their names."""
    import polars as pl

    found: list[pl.DataFrame] = []
    for file in files:
        rows = _of_file(file, limit - sum(part.height for part in found))
        if rows.height or not found:
            found.append(rows)
        if sum(part.height for part in found) >= limit:
            break
    return pl.concat(found, how="diagonal_relaxed")


def _of_file(file: Path, limit: int) -> pl.DataFrame:
    import polars as pl

    if not file.stat().st_size and file.suffix != ".parquet":
        return pl.DataFrame()
    try:
        match file.suffix:
            case ".parquet":
                return pl.scan_parquet(file).head(limit).collect()
            case ".jsonl":
                return pl.scan_ndjson(file).head(limit).collect()
            case _:
                return pl.scan_csv(file).head(limit).collect()
    except pl.exceptions.PolarsError as error:
        why = (_broken_line(file) if file.suffix == ".jsonl" else "") or str(error).splitlines()[0]
        msg = f"{file} cannot be read as {file.suffix}: {why}"
        raise UsageError(msg, hint="look at the file, or rename it if it has another format") from error


def _broken_line(file: Path) -> str:
    """Return number, fault and text of the first line that is not JSON; empty if there is none."""
    from penstock_connectors.formats.decoded import excerpt

    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            try:
                if text:
                    msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return f"line {number:,}: {error}; text {excerpt(text)}"
    return ""
