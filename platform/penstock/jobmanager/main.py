"""The JobManager: takes the leadership of its HA root, listens for TaskManagers, recovers jobs, runs until stopped.

Called by `penstock.rest.server.http_server`, which puts the REST API on the same event loop, and by in-process tests. A
process that has lost its leadership stops at once and deletes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.checkpoint.job_lease import this_process
from penstock.checkpoint.job_records import LeaderRecord, become_leader, check_leading, cluster_id
from penstock.checkpoint.stores import open_store
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import LeadershipLostError, PenstockError, UsageError
from penstock.core.logs import say
from penstock.core.rand import Rand, SystemRand
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.config import JobManagerConfig
from penstock.jobmanager.dispatcher import Dispatcher, DispatcherParts
from penstock.jobmanager.messages.limits import DEFAULT_LIMITS, JobManagerLimits
from penstock.rpc.server import RpcServer

if TYPE_CHECKING:
    from penstock.jobmanager.observe.otlp import OtlpSpans

_LEADER_CHECK_MS = 2_000
EXIT_LEADERSHIP_LOST = 3


class JobManager:
    """One JobManager process's parts."""

    def __init__(
        self,
        config: JobManagerConfig,
        clock: Clock | None = None,
        rand: Rand | None = None,
        limits: JobManagerLimits = DEFAULT_LIMITS,
    ) -> None:
        """Nothing is started; `start` does."""
        self._config, self._limits = config, limits
        self._clock = clock or SystemClock()
        self._rand = rand or SystemRand()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._watch: asyncio.Task[None] | None = None
        self._server: RpcServer | None = None
        self._managers: TaskManagers | None = None
        self._dispatcher: Dispatcher | None = None
        self._spans: OtlpSpans | None = None
        self.generation = 0

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher; known after `start`."""
        assert self._dispatcher is not None  # noqa: S101 - `start` comes first
        return self._dispatcher

    @property
    def rpc_address(self) -> str:
        """Where TaskManagers dial; known after `start`."""
        return self._server.address if self._server is not None else ""

    async def start(self) -> None:
        """Become the leader, listen, recover.

        Raises:
            PenstockError: the HA store cannot be used, or the port is taken.
        """
        if self._config.settings.otlp_endpoint:
            self._spans = await asyncio.to_thread(_open_spans, self._config.settings.otlp_endpoint)
        store = open_store(self._config.ha_uri)
        holder_id = await asyncio.to_thread(cluster_id, store, self._rand)
        jobmanager_id = self._rand.token()
        record = LeaderRecord(generation=0, jobmanager_id=jobmanager_id, pid=os.getpid(), since_ms=self._clock.now_ms())
        self.generation = (await asyncio.to_thread(become_leader, store, record)).generation
        settings = self._config.settings
        managers = self._managers = TaskManagers(jobmanager_id, self.generation, settings, self._clock)
        self._dispatcher = Dispatcher(
            DispatcherParts(
                ha_store=store,
                holder=this_process(holder_id),
                generation=self.generation,
                taskmanagers=managers,
                clock=self._clock,
                rand=self._rand,
                leadership_lost=self.fail,
                fault=self.fail,
                rpc_address=lambda: self.rpc_address,
                jobmanager_id=jobmanager_id,
                spans=self._spans,
                limits=self._limits,
            )
        )
        security = self._config.security
        self._server = RpcServer(managers, settings.rpc_host, settings.rpc_port, security, _log)
        await self._server.start()
        await self._dispatcher.recover()
        self._watch = asyncio.create_task(self._run(managers))

    def shutdown(self) -> None:
        """Let `wait` return; jobs that run stay recorded and go on under the next leader."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`; `wait` raises it."""
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    async def wait(self) -> None:
        """Return when told to stop.

        Raises:
            LeadershipLostError: a newer generation has taken over.
        """
        await self._stopping.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening and let go of all jobs; idempotent."""
        self._stopping.set()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._server is not None:
            await self._server.stop()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    async def _run(self, managers: TaskManagers) -> None:
        """Look after the cluster until told to stop; without that the process is to end, so that another takes over."""
        try:
            await self._look_after(managers)
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self.fail(error)

    async def _look_after(self, managers: TaskManagers) -> None:
        """Look for dead TaskManagers often, and now and then for a newer leader."""
        store = open_store(self._config.ha_uri)
        checked_ms = self._clock.monotonic_ms()
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), managers.check_interval_ms / 1000)
            managers.check()
            if self._dispatcher is not None:
                self._dispatcher.changes.autoscaler.look(self._clock.now_ms())
            if self._clock.monotonic_ms() - checked_ms < _LEADER_CHECK_MS:
                continue
            try:
                await asyncio.to_thread(check_leading, store, self.generation)
            except LeadershipLostError as error:
                self.fail(error)
            except PenstockError as error:
                _log(f"leadership not checked: {error}")
            checked_ms = self._clock.monotonic_ms()


def _open_spans(endpoint: str) -> OtlpSpans:
    try:
        from penstock.jobmanager.observe.otlp import OtlpSpans
    except ImportError as error:
        raise UsageError(f"spans cannot be sent: {error}", hint="pip install 'penstock[otlp]'") from error
    return OtlpSpans(endpoint)


def _log(text: str) -> None:
    """Write a line to the process's log."""
    say("penstock.jobmanager", text, "penstock: ")


async def run_jobmanager(config: JobManagerConfig, ready: Callable[[JobManager], Awaitable[None]]) -> int:
    """Run a JobManager until it is told to stop; return the exit code. `ready` gets it once jobs are recovered."""
    manager = JobManager(config)
    try:
        await manager.start()
        await ready(manager)
        await manager.wait()
        return 0
    except LeadershipLostError as error:
        _log(str(error))
        return EXIT_LEADERSHIP_LOST
    except PenstockError as error:
        _log(str(error))
        return 1
    except Exception:  # noqa: BLE001 - a fault of ours: the log has the traceback, the next process recovers the jobs
        traceback.print_exc()
        return 1
    finally:
        await manager.close()
