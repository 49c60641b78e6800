"""`penstock bench NAME`: runs a benchmark, measures it from outside and checks its results before it prints figures."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.options import JsonOption, SettingsOption, print_json, say
from penstock.client.kernels import compile_kernels
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import UsageError
from penstock_lab.bench.options import BenchOptions
from penstock_lab.bench.registry import WORKLOADS, needs_broker, workload


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Workload; --list shows them.")] = "",
    *,
    list_: Annotated[bool, typer.Option("--list", help="List the workloads.")] = False,
    events: Annotated[int | None, typer.Option(help="Number of events; default: the workload's.")] = None,
    parallelism: Annotated[int, typer.Option(help="Subtasks of each vertex.")] = 2,
    checkpoint_interval: Annotated[
        str | None, typer.Option(help="Time between checkpoints; default: the workload's, mostly 1s.")
    ] = None,
    no_checkpoints: Annotated[bool, typer.Option("--no-checkpoints", help="Only the final one.")] = False,
    keys: Annotated[str, typer.Option(help="Type of the key: int or string.")] = "int",
    nullable: Annotated[bool, typer.Option("--nullable", help="Make key and amount nullable.")] = False,
    key_count: Annotated[int | None, typer.Option(help="Number of keys of w2 and w2x.")] = None,
    peers: Annotated[str | None, typer.Option(help="Folder of other engines, which run in the same call.")] = None,
    pairs: Annotated[int, typer.Option(help="Run N pairs with and without checkpoints; show the overhead.")] = 0,
    latency: Annotated[
        bool, typer.Option("--latency", help="Measure the latency at half of the highest rate.")
    ] = False,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka broker of w4; default: start one.")] = None,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a benchmark on an embedded cluster.

    With a wrong result it prints no figure and exits with code 1.
    """
    if list_:
        _list(as_json=json)
        return
    if not name:
        raise UsageError("the workload is missing", hint="`penstock bench --list` shows them")
    run = workload(name)
    options = BenchOptions(
        events=events,
        parallelism=parallelism,
        checkpoint_interval_ms=_interval(checkpoint_interval, checkpoints=not no_checkpoints),
        keys=keys,  # type: ignore[arg-type]  # checked below
        nullable=nullable,
        key_count=key_count,
        peers=peers,
        pairs=pairs,
        latency=latency,
        bootstrap=bootstrap,
        settings=dict(_setting(text) for text in settings or []),
    )
    options.check()
    with _ended_by_a_signal(), _broker(name, options) as chosen:
        compile_kernels(benchmarks=True)
        figures = run(chosen)
    if json:
        print_json(figures)
    else:
        for key, value in figures.items():
            say(f"{key:<24} {_shown(value)}")


@contextlib.contextmanager
def _ended_by_a_signal() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, so that no job, engine or broker stays running."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _broker(name: str, options: BenchOptions) -> Iterator[BenchOptions]:
    """Yield the options with a broker if one is needed: the given one, or one that lives as long as the block."""
    if not needs_broker(name, options) or options.bootstrap is not None:
        yield options
        return
    from penstock_lab.servers import start_kafka

    with tempfile.TemporaryDirectory(prefix="penstock-bench-kafka-") as folder:
        kafka = start_kafka(Path(folder) / "kafka", progress=lambda text: typer.echo(text, err=True))
        try:
            yield msgspec.structs.replace(options, bootstrap=kafka.bootstrap)
        finally:
            kafka.remove()


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json({name: text for name, (_, text) in WORKLOADS.items()})
        return
    for name, (_, text) in WORKLOADS.items():
        say(f"{name:<12} {text}")


def _interval(text: str | None, *, checkpoints: bool) -> int | msgspec.UnsetType | None:
    if not checkpoints:
        return None
    return msgspec.UNSET if text is None else parse_duration_ms(text, "interval")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r} has no value", hint="use --set key=value")
    return key, value


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
