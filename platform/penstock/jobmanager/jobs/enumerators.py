"""Runs the connectors' split enumerators and validations in helper threads; only this module loads connectors.

Used by `jobmanager.jobs.job_driver` (enumerators of one job) and `jobmanager.dispatcher` (validation at submit).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from penstock.connector.sink import SinkFactory, SinkSpec
from penstock.connector.sink import load_factory as load_connector
from penstock.connector.source import SourceFactory, SplitEnumerator
from penstock.core.errors import ConnectorError, PenstockError, UnreachableError, is_located
from penstock.core.secrets import redact
from penstock.graph.job_graph import JobGraph, OperatorSpec
from penstock.jobmanager.cluster.daemon_thread_pool import DaemonThreadPool
from penstock.jobmanager.deploy.deployment import source_spec
from penstock.jobmanager.messages.commands import DiscoverSplits
from penstock.jobmanager.messages.events import DiscoveryFailed, Event, SplitsDiscovered

_DISCOVERY_TIMEOUT_S = 60.0
_VALIDATE_TIMEOUT_S = 60.0
_VALIDATIONS = DaemonThreadPool("validation", 4)


class Enumerators:
    """The enumerators of one job, one thread for each source."""

    def __init__(self, graph: JobGraph, post: Callable[[Event], None]) -> None:
        """Prepare the import path; connectors are loaded at the first discovery."""
        self._sources = {v.operators[0].uid: v.operators[0] for v in graph.vertices if v.is_source}
        self._post = post
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._open: dict[str, tuple[int, SplitEnumerator]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        _extend_path(graph)

    def discover(self, command: DiscoverSplits) -> None:
        """Start a discovery; its answer is posted as an event."""
        task = asyncio.get_running_loop().create_task(self._discover(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close all enumerators, in their threads; a later discovery opens new ones."""
        for uid, thread in self._threads.items():
            thread.submit(self._close_one, uid)
            thread.shutdown(wait=False)
        self._threads = {}

    async def _discover(self, command: DiscoverSplits) -> None:
        thread = self._threads.get(command.uid)
        if thread is None:
            thread = ThreadPoolExecutor(1, thread_name_prefix=f"enumerator-{command.uid}")
            self._threads[command.uid] = thread
        loop = asyncio.get_running_loop()
        try:
            splits = await asyncio.wait_for(loop.run_in_executor(thread, self._ask, command), _DISCOVERY_TIMEOUT_S)
        except TimeoutError:
            text = f"no answer within {_DISCOVERY_TIMEOUT_S:.0f} s"
            self._post(DiscoveryFailed(command.uid, command.epoch, text))
        except Exception as error:  # noqa: BLE001 - a connector may raise anything; the job reports it
            text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            self._post(DiscoveryFailed(command.uid, command.epoch, redact(text)))
        else:
            self._post(SplitsDiscovered(command.uid, command.epoch, splits))

    def _ask(self, command: DiscoverSplits) -> tuple[dict[str, Any], ...]:
        epoch, enumerator = self._open.get(command.uid, (-1, None))
        if enumerator is None or epoch != command.epoch:
            self._close_one(command.uid)
            spec = source_spec(self._sources[command.uid])
            factory: SourceFactory = load_connector(spec.factory)
            enumerator = factory.create_enumerator(spec, first_run=command.first_run)
            self._open[command.uid] = (command.epoch, enumerator)
        found: tuple[dict[str, Any], ...] = tuple(msgspec.to_builtins(s) for s in enumerator.discover(command.known))
        return found

    def _close_one(self, uid: str) -> None:
        _epoch, enumerator = self._open.pop(uid, (-1, None))
        if enumerator is not None:
            enumerator.close()


async def validate(
    graph: JobGraph, threads: DaemonThreadPool = _VALIDATIONS, timeout_s: float = _VALIDATE_TIMEOUT_S
) -> None:
    """Run the validation of every source and sink of the job.

    Raises:
        ConnectorError: a validation failed; the message has a hint. One that does not end in time is named.
    """
    _extend_path(graph)
    begun: list[OperatorSpec] = []
    try:
        await threads.call(timeout_s, _validate, graph, begun)
    except TimeoutError as error:
        raise _not_checked(graph, begun, timeout_s) from error
    except PenstockError:
        raise
    except Exception as error:
        msg = f"the connectors of job {graph.name!r} rejected their configuration: {type(error).__name__}: {error}"
        raise ConnectorError(msg, hint="client and JobManager must be of the same version") from error


def _not_checked(graph: JobGraph, begun: list[OperatorSpec], timeout_s: float) -> UnreachableError:
    """Return the error of a validation that did not end in time; `begun`: the operators so far, the last one waits."""
    if not begun:
        msg = f"the connectors of job {graph.name!r} were not checked within {timeout_s:g} s: other jobs' checks wait"
        return UnreachableError(msg, hint="check that the external systems of the jobs are reachable")
    last = begun[-1]
    where, place = f"{last.where}: " if last.where else "", last.place or "its external system"
    msg = f"{where}{last.kind} {last.uid!r}: {place} did not answer the check of the submit within {timeout_s:g} s"
    return UnreachableError(msg, hint="check that the address is right and that the system answers")


def _validate(graph: JobGraph, begun: list[OperatorSpec]) -> None:
    for vertex in graph.vertices:
        for operator in vertex.operators:
            if operator.kind in ("source", "sink"):
                begun.append(operator)
            try:
                _validate_one(operator, graph.settings.checkpoint_interval_ms)
            except PenstockError as error:
                if not operator.where or is_located(error.message):
                    raise
                raise type(error)(f"{operator.where}: {error.message}", hint=error.hint) from error


def _validate_one(operator: OperatorSpec, checkpoint_interval_ms: int | None) -> None:
    if operator.kind == "source":
        source = source_spec(operator)
        source_factory: SourceFactory = load_connector(source.factory)
        source_factory.validate(source)
    elif operator.kind == "sink":
        sink = msgspec.convert(operator.config["sink"], SinkSpec)
        sink_factory: SinkFactory = load_connector(sink.factory)
        sink_factory.validate(sink, checkpoint_interval_ms)


def _extend_path(graph: JobGraph) -> None:
    """Add the folders of the job file to the import path, for the user's connectors."""
    for folder in graph.settings.python_path:
        if folder not in sys.path:
            sys.path.append(folder)
