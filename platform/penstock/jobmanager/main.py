"""The JobManager: waits to lead its HA root, then accepts TaskManagers, recovers jobs and runs until it is stopped.

Called by `penstock.rest.server.http_server`, which serves the REST API on the same event loop, and by in-process tests.
A `JobManager` is used once: a leader that is replaced closes it, deletes nothing, and waits with a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.checkpoint.ha_records import cluster_id
from penstock.checkpoint.job_lease import this_process
from penstock.checkpoint.leader_lease import LeaderLease
from penstock.checkpoint.stores import open_store, place_of
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import LeadershipLostError, PenstockError, StorageError, UsageError, extra_hint
from penstock.core.logs import log_line
from penstock.core.rand import Rand, SystemRand
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.config import DEFAULT_LIMITS, JobManagerConfig, JobManagerLimits
from penstock.jobmanager.confirmed_sessions import ConfirmedSessions
from penstock.jobmanager.dispatcher import Dispatcher, DispatcherParts
from penstock.jobmanager.jobs.suspended_jobs import SuspendedJobs
from penstock.jobmanager.leadership import Leadership
from penstock.rpc.listening import CONTROL
from penstock.rpc.probes import LeaderProber
from penstock.rpc.stream import RpcServer

if TYPE_CHECKING:
    from penstock.jobmanager.observe.otlp import OtlpSpans


class JobManager:
    """A standby, then the leader until the shutdown or until another JobManager leads."""

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
        self._watches: list[asyncio.Task[None]] = []
        self._server: RpcServer | None = None
        self._managers: TaskManagers | None = None
        self._dispatcher: Dispatcher | None = None
        self._spans: OtlpSpans | None = None
        #: The election; None before `start`.
        self.leadership: Leadership | None = None
        #: The jobs while no JobManager leads; None before `start`.
        self.suspended_jobs: SuspendedJobs | None = None
        #: It ends so that a standby leads.
        self.handed_over = False

    @property
    def generation(self) -> int:
        """The generation of this leader; 0 as a standby."""
        return 0 if self.leadership is None else self.leadership.generation

    @property
    def has_joined(self) -> bool:
        """Whether this process has read the lease of its HA root, or leads."""
        return self.leadership is not None and (self.leadership.leader is not None or self.generation > 0)

    @property
    def rest_url(self) -> str:
        """The URL of this process's REST API, as its lease names it."""
        return self._config.rest_url

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher; available after `start`."""
        assert self._dispatcher is not None  # noqa: S101 - `start` comes first
        return self._dispatcher

    @property
    def rpc_address(self) -> str:
        """The address that TaskManagers connect to; known after `start`."""
        return self._server.address if self._server is not None else ""

    async def start(self, *, later_ms: int = 0) -> bool:
        """Wait until this process leads, then listen for TaskManagers and recover the jobs.

        With `later_ms` it lets others lead for that time. Returns False if it was shut down as a standby.

        Raises:
            PenstockError: the HA store is not usable, or the port is taken. LeadershipLostError: another one leads.
        """
        config, settings = self._config, self._config.settings
        if settings.otlp_endpoint:
            self._spans = await asyncio.to_thread(_open_spans, settings.otlp_endpoint)
        CONTROL.require_free(settings.rpc_host, settings.rpc_port)  # a standby finds out now, not when it takes over
        store = open_store(config.ha_uri)
        self.suspended_jobs = SuspendedJobs(store, self._clock)
        identity = asyncio.create_task(asyncio.to_thread(cluster_id, store, self._rand))
        if not (await asyncio.wait({identity}, timeout=self._limits.quiet_ms / 1000))[0]:
            _log(f"waiting for an answer of {place_of(config.ha_uri)}; check that the server runs")
        holder = this_process(await identity)
        jobmanager_id = self._rand.token()
        lease = LeaderLease(
            generation=0,
            jobmanager_id=jobmanager_id,
            holder=holder,
            rest=config.rest_url,
            ttl_ms=settings.leader_lease_ms,
            election=settings.leader_election,
        )
        leases = None
        if settings.leader_election:
            from penstock.checkpoint.kubernetes_leases import KubernetesLeases

            leases = KubernetesLeases(settings.leader_election, os.environ, self._clock)
        prober = LeaderProber(config.security)
        self.leadership = Leadership(store, lease, self._clock, _log, leases, prober)
        if later_ms:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), later_ms / 1000)
        if not await self.leadership.wait(self._stopping):
            return False
        self._watches.append(asyncio.create_task(self.leadership.keep(self._stopping, self.fail)))
        self._watches.append(asyncio.create_task(self.leadership.watch_standbys(self._stopping)))
        managers = self._managers = TaskManagers(jobmanager_id, self.generation, settings, self._clock)
        self._dispatcher = Dispatcher(
            DispatcherParts(
                ha_store=store,
                holder=msgspec.structs.replace(holder, leader_generation=self.generation),
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
        sessions = ConfirmedSessions(managers, self.leadership, self.fail)
        self._server = RpcServer(sessions, settings.rpc_host, settings.rpc_port, config.security, _log)
        await self._server.start(self.leadership.answer)
        host, _, port = self._server.address.rpartition(":")
        await self.leadership.publish(f"{reachable_host(host)}:{port}")
        await self._dispatcher.recover()
        self._watches.append(asyncio.create_task(self._run(managers)))
        return True

    def shutdown(self) -> None:
        """Let `wait` return; running jobs stay recorded, and the next leader resumes them."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`; `wait` raises it."""
        if self._failure is None:
            self._failure = error
        self._stopping.set()

    def hand_over(self) -> None:
        """Let a standby lead: `wait` raises LeadershipLostError, and the workers continue under the next leader."""
        self.handed_over = True
        self.fail(LeadershipLostError("this JobManager hands over to a standby", hint="try again in a second"))

    async def wait(self) -> None:
        """Wait for the shutdown.

        Raises:
            LeadershipLostError: a newer generation has taken over.
        """
        await self._stopping.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening and driving jobs, and let a standby take over; idempotent."""
        self._stopping.set()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._server is not None:
            await self._server.stop()
        for watch in self._watches:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if self.leadership is not None:
            await self.leadership.release()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    async def _run(self, managers: TaskManagers) -> None:
        """Supervise the cluster until the shutdown; an error ends the process, so that another one can take over."""
        try:
            await self._look_after(managers)
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self.fail(error)

    async def _look_after(self, managers: TaskManagers) -> None:
        """Check for dead TaskManagers and run the autoscaler."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), managers.check_interval_ms / 1000)
            managers.check()
            if self._dispatcher is not None:
                self._dispatcher.autoscaler.sample(self._clock.now_ms())


_WILDCARD_HOSTS = ("0.0.0.0", "[::]", "::")  # noqa: S104 - addresses to replace


def reachable_host(host: str) -> str:
    """Return a listening host, or the name of this machine if it is a wildcard."""
    return socket.gethostname() if host in _WILDCARD_HOSTS else host


def _open_spans(endpoint: str) -> OtlpSpans:
    try:
        from penstock.jobmanager.observe.otlp import OtlpSpans
    except ImportError as error:
        raise UsageError(f"cannot export spans: {error}", hint=extra_hint("otlp")) from error
    return OtlpSpans(endpoint)


def _log(text: str) -> None:
    """Write a line to the process's log."""
    log_line("penstock.jobmanager", text, "penstock: ")


async def run_jobmanager(
    config: JobManagerConfig,
    stopping: asyncio.Event,
    standing: Callable[[JobManager], None],
    leading: Callable[[JobManager], Awaitable[None]],
) -> int:
    """Wait to lead and lead, again and again, until `stopping` is set; return the exit code.

    `standing` is called whenever this process becomes a standby, `leading` when it leads and has recovered the jobs.
    """
    later_ms = 0
    while not stopping.is_set():
        manager = JobManager(config)
        standing(manager)
        stopper = asyncio.create_task(_shut_down(manager, stopping))
        try:
            if await manager.start(later_ms=later_ms):
                await leading(manager)
                await manager.wait()
            return 0
        except LeadershipLostError as error:
            _log(str(error))
            later_ms = config.settings.leader_lease_ms if manager.handed_over else 0
        except PenstockError as error:
            _log(str(error))
            if not (isinstance(error, StorageError) and manager.has_joined):
                return 1
            # the store has answered before: this process takes part in the election again
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), config.settings.leader_lease_ms / 1000)
        except Exception:  # noqa: BLE001 - an internal error: the log has the traceback, the next process recovers
            traceback.print_exc()
            return 1
        finally:
            stopper.cancel()
            await manager.close()
    return 0


async def _shut_down(manager: JobManager, stopping: asyncio.Event) -> None:
    await stopping.wait()
    manager.shutdown()
