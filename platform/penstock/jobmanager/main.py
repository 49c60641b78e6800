"""The JobManager: becomes leader of its HA root, accepts TaskManagers, recovers jobs and runs until stopped.

Called by `penstock.rest.server.http_server`, which serves the REST API on the same event loop, and by in-process tests.
A process that loses its leadership stops at once and deletes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.checkpoint.ha_records import LeaderRecord, become_leader, check_leading, cluster_id
from penstock.checkpoint.job_lease import this_process
from penstock.checkpoint.stores import open_store
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import LeadershipLostError, PenstockError, UsageError, extra_hint
from penstock.core.logs import log_line
from penstock.core.rand import Rand, SystemRand
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.config import DEFAULT_LIMITS, JobManagerConfig, JobManagerLimits
from penstock.jobmanager.dispatcher import Dispatcher, DispatcherParts
from penstock.rpc.server import RpcServer

if TYPE_CHECKING:
    from penstock.jobmanager.observe.otlp import OtlpSpans

_LEADER_CHECK_MS = 2_000
EXIT_LEADERSHIP_LOST = 3


class JobManager:
    """The parts of one JobManager process."""

    def __init__(
        self,
        config: JobManagerConfig,
        clock: Clock | None = None,
        rand: Rand | None = None,
        limits: JobManagerLimits = DEFAULT_LIMITS,
    ) -> None:
        """Create the parts; `start` starts them."""
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
        """The dispatcher; available after `start`."""
        assert self._dispatcher is not None  # noqa: S101 - `start` comes first
        return self._dispatcher

    @property
    def rpc_address(self) -> str:
        """The address that TaskManagers connect to; known after `start`."""
        return self._server.address if self._server is not None else ""

    async def start(self) -> None:
        """Become the leader, listen for TaskManagers and recover the jobs.

        Raises:
            PenstockError: the HA store is not usable, or the port is taken.
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
        """Let `wait` return; running jobs stay recorded, and the next leader resumes them."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`; `wait` raises it."""
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    async def wait(self) -> None:
        """Wait for the shutdown.

        Raises:
            LeadershipLostError: a newer generation has taken over.
        """
        await self._stopping.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening and driving jobs; idempotent."""
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
        """Supervise the cluster until the shutdown; an error ends the process, so that another one can take over."""
        try:
            await self._look_after(managers)
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self.fail(error)

    async def _look_after(self, managers: TaskManagers) -> None:
        """Check for dead TaskManagers and run the autoscaler often; check for a newer leader less often."""
        store = open_store(self._config.ha_uri)
        checked_ms = self._clock.monotonic_ms()
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), managers.check_interval_ms / 1000)
            managers.check()
            if self._dispatcher is not None:
                self._dispatcher.changes.autoscaler.sample(self._clock.now_ms())
            if self._clock.monotonic_ms() - checked_ms < _LEADER_CHECK_MS:
                continue
            try:
                await asyncio.to_thread(check_leading, store, self.generation)
            except LeadershipLostError as error:
                self.fail(error)
            except PenstockError as error:
                _log(f"cannot check the leadership: {error}")
            checked_ms = self._clock.monotonic_ms()


def _open_spans(endpoint: str) -> OtlpSpans:
    try:
        from penstock.jobmanager.observe.otlp import OtlpSpans
    except ImportError as error:
        raise UsageError(f"cannot export spans: {error}", hint=extra_hint("otlp")) from error
    return OtlpSpans(endpoint)


def _log(text: str) -> None:
    """Write a line to the process's log."""
    log_line("penstock.jobmanager", text, "penstock: ")


async def run_jobmanager(config: JobManagerConfig, ready: Callable[[JobManager], Awaitable[None]]) -> int:
    """Run a JobManager until shutdown; return the exit code.

    `ready` is called with the JobManager after the recovery.
    """
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
    except Exception:  # noqa: BLE001 - an internal error: the log has the traceback, the next process recovers
        traceback.print_exc()
        return 1
    finally:
        await manager.close()
