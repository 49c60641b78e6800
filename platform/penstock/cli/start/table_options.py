"""Options of `penstock backfill` and `penstock check --backfill` about tables with the first part of a history."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.backfill.histories import TableHistory

UNTIL = (
    "latest, a time such as 2026-01-31T00:00Z (of writing, not of events), SPLIT=POSITION,... (Kafka: orders-0=1200), "
    "or cut-over: nothing after the tables of --history"
)
_CUT_OVER = "SPLIT=POSITION,... or a time of writing, from which rows are read from the topic; default: the table's end"

UntilOption = Annotated[str, typer.Option(help=UNTIL)]
HistoryOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID=URI", help="Parquet file or folder with the first part of a source's history."),
]
OffsetsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID=PARTITION,OFFSET", help="The table's columns for partition and offset (and ,TOPIC)."),
]
SparseOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID", help="The table may lack offsets (transactions, compaction)."),
]
CutOverOption = Annotated[str | None, typer.Option(help=_CUT_OVER)]


def parse_tables(
    history: list[str] | None, offsets: list[str] | None, sparse: list[str] | None
) -> tuple[TableHistory, ...]:
    """Return the tables of the options.

    Raises:
        UsageError: an option is malformed, or its source has no `--history`.
    """
    from penstock.backfill.histories import TableHistory
    from penstock.backfill.table_plan import Offsets

    uris: dict[str, list[str]] = {}
    for item in history or []:
        uid, uri = _pair("--history", item, "UID=URI")
        uris.setdefault(uid, []).append(uri)
    columns = {}
    for item in offsets or []:
        uid, text = _pair("--offsets", item, "UID=PARTITION,OFFSET")
        partition, offset, topic = [*text.split(","), "", ""][:3]
        if not partition or not offset or text.count(",") > 2:
            raise UsageError(f"--offsets {item!r} names no columns", hint="use UID=PARTITION,OFFSET or ...,TOPIC")
        columns[uid] = Offsets(partition=partition, offset=offset, topic=topic)
    for uid in [*columns, *(sparse or [])]:
        if uid not in uris:
            raise UsageError(f"{uid!r} has no table", hint=f"add --history {uid}=URI")
    for uid in sparse or []:
        if uid not in columns:
            raise UsageError(f"--sparse {uid} needs offsets", hint=f"add --offsets {uid}=PARTITION,OFFSET")
    return tuple(
        TableHistory(uid=uid, uris=tuple(found), offsets=columns.get(uid), sparse=uid in (sparse or []))
        for uid, found in uris.items()
    )


def parse_until(text: str) -> dict[str, Any]:
    """Parse `--until` into the argument of `connector.source.HistoryFactory`; raises UsageError."""
    if text in ("latest", "cut-over"):
        return {} if text == "latest" else {"begin": True}
    return _position(text, "--until", UNTIL)


def parse_cut_over(text: str | None) -> dict[str, Any]:
    """Parse `--cut-over` into the argument of `backfill.histories.Cut`; raises UsageError."""
    return {} if text is None else _position(text, "--cut-over", _CUT_OVER)


def _position(text: str, option: str, hint: str) -> dict[str, Any]:
    if "=" in text:
        positions = {}
        for item in text.split(","):
            split, _, position = item.rpartition("=")
            if not split or not position.isdecimal():
                raise UsageError(f"{option} {item!r} is not a position", hint="use SPLIT=POSITION, as in orders-0=1200")
            positions[split] = int(position)
        return {"positions": positions}
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a position", hint=hint) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return {"timestamp": int(moment.timestamp() * 1000)}


def _pair(option: str, item: str, form: str) -> tuple[str, str]:
    uid, _, value = item.partition("=")
    if not uid or not value:
        raise UsageError(f"{option} {item!r} is malformed", hint=f"use {form}")
    return uid, value
