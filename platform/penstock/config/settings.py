"""Settings of a job and of a cluster, as frozen serialisable values; the one table of options with their defaults.

Built by `ps.Environment`, the command line (`--set key=value`) and REST; read by every process. Durations are
milliseconds, sizes are bytes. Secrets are never settings: they come from each process's environment.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec

from penstock.core.errors import UsageError, argument_text, did_you_mean
from penstock.core.structs import prepare

_HINT = "see the table of settings in the docs"
#: The setting that msgspec's error is about.
_PATH = re.compile(r"at `\$\.([\w.]+)")
_UNITS_MS = {
    unit: size
    for size, units in {
        1: ("ms",),
        1_000: ("s", "sec", "second", "seconds"),
        60_000: ("m", "min", "minute", "minutes"),
        3_600_000: ("h", "hour", "hours"),
        86_400_000: ("d", "day", "days"),
    }.items()
    for unit in units
}
MOST_SUBTASKS = 1 << 15
#: Managed memory of a slot whose job sets none.
DEFAULT_MANAGED_BYTES = 256 << 20
#: Each one under way holds the rows of its changes in memory until they are uploaded.
MOST_CONCURRENT_CHECKPOINTS = 32
_MOST_MS, _MOST_PORT = 366 * 86_400_000, 65_535
S = TypeVar("S", bound=msgspec.Struct)
_UNITS_BYTES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class RestartStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """The restart strategy of a job, with Flink's names.

    Failures that a restart cannot fix end the job with every kind (`jobmanager.deploy.failover`).
    """

    kind: Literal["fixed-delay", "exponential-delay", "failure-rate", "none"] = "exponential-delay"
    #: exponential-delay: restarts in a row; the default is about a day at `max_delay_ms`.
    attempts: int = 1_500
    #: exponential-delay: restarts in a row after errors of the user's functions; none before the run's first
    #: checkpoint. The count starts again after `reset_after_ms` without failure and with a checkpoint.
    user_code_attempts: int = 10
    delay_ms: int = 100
    max_delay_ms: int = 60_000
    backoff_multiplier: float = 2.0
    jitter: float = 0.1
    #: exponential-delay: after a run this long without failure the next delay is `delay_ms`. With a checkpoint, a run
    #: as long as the last delay is enough, except after errors of the user's functions.
    reset_after_ms: int = 60_000
    #: failure-rate: at most this many failures in `rate_interval_ms`.
    max_failures_per_interval: int = 3
    rate_interval_ms: int = 60_000

    @property
    def most_of_user_code(self) -> int | None:
        """Return the limit of restarts in a row after errors of the user's functions; None: there is none."""
        return {"exponential-delay": self.user_code_attempts, "fixed-delay": self.attempts, "none": 0}.get(self.kind)


class ResourceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The least resources of the slots of one slot sharing group; 0: any amount."""

    group: str = "default"
    #: Cores of the TaskManager's host, divided by its slots.
    cpu_cores: float = 0.0
    #: Code, libraries and batches.
    task_memory_bytes: int = 0
    #: The guaranteed part.
    network_memory_bytes: int = 0
    #: State; workers get this much of it.
    managed_memory_bytes: int = 0


def fail_fast(settings: JobSettings) -> JobSettings:
    """Return the settings of a job that ends with its input: the first error of a user's function fails it."""
    restart = msgspec.structs.replace(settings.restart, user_code_attempts=0)
    return msgspec.structs.replace(settings, restart=restart)


class AutoscalerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the autoscaler, with Flink's names.

    The JobManager then changes a job's parallelism itself (`jobmanager.change.vertex_scaling`).
    """

    enabled: bool = False
    #: Report decisions without acting on them.
    dry_run: bool = True
    #: Averaging window of the metrics.
    metrics_window_ms: int = 60_000
    #: Metrics are ignored for this long after a start.
    stabilization_interval_ms: int = 30_000
    #: Target fraction of its time that a subtask is busy, and the accepted distance from it.
    target_utilization: float = 0.7
    utilization_boundary: float = 0.2
    #: Per vertex; the slots and key groups also limit the largest.
    min_parallelism: int = 1
    max_parallelism: int = 200
    #: Time in which a backlog has to be processed, and within which a restart has to pay off.
    catch_up_duration_ms: int = 600_000
    #: Time after a change without scaling down; a rescale that did not help is not repeated for this long.
    scale_down_interval_ms: int = 600_000
    #: Assumed duration of a restart until some were measured.
    restart_time_ms: int = 10_000

    @property
    def fault(self) -> str:
        """Return an error text for a setting that is out of range; empty if all are in range."""
        ranges = {
            "metrics_window_ms": (0, _MOST_MS),
            "stabilization_interval_ms": (0, _MOST_MS),
            "target_utilization": (0.01, 1),
            "utilization_boundary": (0, 1),
            "max_parallelism": (1, MOST_SUBTASKS),
            "min_parallelism": (1, self.max_parallelism),
            "catch_up_duration_ms": (1, _MOST_MS),
            "scale_down_interval_ms": (0, _MOST_MS),
            "restart_time_ms": (0, _MOST_MS),
        }
        return _out_of_range(self, ranges)


class AdaptiveSchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the adaptive scheduler, with Flink's names.

    The job's parallelism is then its largest, and follows the slots (`jobmanager.change.adaptive_scheduler`).
    """

    enabled: bool = False
    #: The job does not run with less, unless it declares less.
    min_parallelism: int = 1
    #: A start waits for the whole parallelism at most this long; without the minimum it then fails.
    resource_wait_timeout_ms: int = 300_000
    #: Fewer slots than wanted are used after they have not changed for this long.
    resource_stabilization_timeout_ms: int = 10_000
    #: Least time between the start of all subtasks and a rescale.
    scaling_interval_ms: int = 30_000
    #: A running job takes more slots only for at least this many more subtasks per vertex.
    min_parallelism_increase: int = 1

    @property
    def fault(self) -> str:
        """Return an error text for a setting that is out of range; empty if all are in range."""
        ranges = {
            "min_parallelism": (1, MOST_SUBTASKS),
            "resource_wait_timeout_ms": (0, _MOST_MS),
            "resource_stabilization_timeout_ms": (0, _MOST_MS),
            "scaling_interval_ms": (0, _MOST_MS),
            "min_parallelism_increase": (1, MOST_SUBTASKS),
        }
        return _out_of_range(self, ranges)


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a job carries from its submitter."""

    parallelism: int = 1
    key_groups: int = 1024
    #: Root URI that contains the folder `<job name>/`: a folder path, `file://...` or `s3://bucket/prefix`.
    checkpoint_root: str = ""
    #: None: no periodic checkpoints (bounded jobs still take their final one).
    checkpoint_interval_ms: int | None = None
    checkpoint_timeout_ms: int = 600_000
    checkpoint_min_pause_ms: int = 0
    checkpoint_tolerated_failures: int = 0
    #: `at-least-once`: barriers block no channel, so state may count rows again after a restore.
    checkpoint_mode: Literal["exactly-once", "at-least-once"] = "exactly-once"
    #: Checkpoints that may be under way at a time. Savepoints and stops are alone.
    max_concurrent_checkpoints: int = 1
    #: The job restarts when no checkpoint completes for this long, regardless of the tolerated failures; 0 = off.
    checkpoint_max_age_ms: int = 0
    #: Barriers of checkpoints overtake rows that wait for a slow receiver, or with `remote` for their state; these rows
    #: become part of the checkpoint.
    unaligned_checkpoints: bool = False
    #: `unaligned_checkpoints`: barriers stay in order for this long after the trigger; 0: they overtake at once.
    aligned_checkpoint_timeout_ms: int = 0
    retained_checkpoints: int = 3
    state_backend: Literal["hashmap", "rocksdb", "remote"] = "hashmap"
    #: `remote`: limit of fetched state on the local disk of one slot; above it, cold state is dropped.
    remote_local_bytes: int = 8 << 30
    #: Limit of the copies of checkpoint files on the local disk of one slot, for restarts there; 0: none.
    local_recovery_bytes: int = 8 << 30
    #: State of a subtask from which the workers of a rescale or upgrade load it while the old ones run.
    prepare_state_bytes: int = 16 << 20
    #: Limit of hot tables, frozen pages and open segments of one slot; None: `DEFAULT_MANAGED_BYTES`, or the slot's
    #: part of the TaskManager's managed memory if that is less.
    managed_memory_bytes: int | None = None
    buffer_timeout_ms: int = 100
    buffer_size_bytes: int = 1 << 20
    #: Exclusive bytes per channel and floating bytes per gate = these counts x buffer_size_bytes.
    exclusive_buffers: int = 2
    floating_buffers: int = 8
    #: Rows in flight to a subtask are bounded to what it processes in this time; 0: by the buffers alone.
    buffer_debloat_target_ms: int = 0
    #: Aggregates that are combined by key and pane before the shuffle. `exact`: those whose result does not depend on
    #: the order. `all`: also sums and means of floats, whose last digits then depend on the batches. `off`: none.
    combine: Literal["exact", "all", "off"] = "exact"
    #: A smaller batch is not combined.
    combine_min_rows: int = 4096
    #: Combining has to leave at most this fraction of a batch's rows; else it pauses for some batches.
    combine_ratio: float = 0.1
    #: Jobs of a higher priority get slots first.
    slot_priority: int = 0
    #: By slot sharing group.
    slot_resources: tuple[ResourceProfile, ...] = ()
    restart: RestartStrategy = RestartStrategy()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    adaptive_scheduler: AdaptiveSchedulerSettings = AdaptiveSchedulerSettings()
    #: Sink back-pressure limits for output that is not known to be published.
    sink_pending_max_bytes: int = 4 << 30
    sink_pending_max_epochs: int = 1000
    #: Errors show the row or the values at which a function failed.
    show_values_in_errors: bool = True
    #: PEP 508 requirements installed once per TaskManager for this job.
    requirements: tuple[str, ...] = ()
    #: Local folders put on the workers' import path (the job file's own folder).
    python_path: tuple[str, ...] = ()

    @property
    def managed_bytes(self) -> int:
        """The managed memory of a slot; in a worker, what its TaskManager granted."""
        return DEFAULT_MANAGED_BYTES if self.managed_memory_bytes is None else self.managed_memory_bytes

    @property
    def fault(self) -> str:
        """Return an error text for a setting that is out of range; empty if all are in range."""
        ranges: dict[str, tuple[float, float]] = {
            "parallelism": (1, MOST_SUBTASKS),
            "key_groups": (1, MOST_SUBTASKS),
            "checkpoint_timeout_ms": (1, _MOST_MS),
            "checkpoint_min_pause_ms": (0, _MOST_MS),
            "checkpoint_max_age_ms": (0, _MOST_MS),
            "aligned_checkpoint_timeout_ms": (0, _MOST_MS),
            "buffer_debloat_target_ms": (0, _MOST_MS),
            "retained_checkpoints": (1, MOST_SUBTASKS),
            "max_concurrent_checkpoints": (1, MOST_CONCURRENT_CHECKPOINTS),
        }
        if self.checkpoint_interval_ms is not None:
            ranges["checkpoint_interval_ms"] = (1, _MOST_MS)
        if found := _out_of_range(self, ranges):
            return found
        if self.unaligned_checkpoints and self.checkpoint_mode != "exactly-once":
            return f"unaligned_checkpoints is true, but checkpoint_mode is {self.checkpoint_mode}"
        if self.max_concurrent_checkpoints > 1 and (self.unaligned_checkpoints or self.checkpoint_min_pause_ms):
            other = "unaligned_checkpoints" if self.unaligned_checkpoints else "checkpoint_min_pause_ms"
            return f"max_concurrent_checkpoints is {self.max_concurrent_checkpoints}, but has to be 1 with {other}"
        if any(min(msgspec.structs.astuple(profile)[1:]) < 0 for profile in self.slot_resources):
            return "slot_resources is negative for a resource, but has to be at least 0"
        groups = {"autoscaler": self.autoscaler.fault, "adaptive_scheduler": self.adaptive_scheduler.fault}
        return next((f"{name}.{fault}" for name, fault in groups.items() if fault), "")


prepare(JobSettings)


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a JobManager, and the times that it sends to its TaskManagers."""

    heartbeat_interval_ms: int = 500
    #: A TaskManager without heartbeat for this long counts as dead.
    heartbeat_timeout_ms: int = 5_000
    #: Kernel lease of a worker: it dies if no heartbeat reached the coordinator for this long.
    worker_lease_ms: int = 4_000
    #: A leader that does not renew its lease for this long is replaced by a standby.
    leader_lease_ms: int = 2_500
    #: Where the leader is elected: `kubernetes://NAMESPACE/NAME`, a Lease; empty: in the HA root.
    leader_election: str = ""
    #: How long a new leader waits for the running workers of a job before it restarts the job; 0: it restarts it.
    reconcile_timeout_ms: int = 2_000
    #: Largest number of slots the cluster can have; a larger job is refused. 0: unknown.
    most_slots: int = 0
    slot_request_timeout_ms: int = 60_000
    rest_host: str = "127.0.0.1"
    rest_port: int = 8081
    rpc_host: str = "127.0.0.1"
    rpc_port: int = 6123
    #: URL of a collector for spans by OTLP over HTTP; empty: no spans are made.
    otlp_endpoint: str = ""

    @property
    def fault(self) -> str:
        """Return an error text for a setting that is out of range; empty if all are in range."""
        interval = self.heartbeat_interval_ms
        ranges = {
            "heartbeat_interval_ms": (10, _MOST_MS),
            "heartbeat_timeout_ms": (2 * interval, _MOST_MS),
            "worker_lease_ms": (2 * interval, self.heartbeat_timeout_ms),
            "leader_lease_ms": (100, _MOST_MS),
            "reconcile_timeout_ms": (0, self.worker_lease_ms),
            "most_slots": (0, MOST_SUBTASKS),
            "slot_request_timeout_ms": (0, _MOST_MS),
            "rest_port": (0, _MOST_PORT),
            "rpc_port": (0, _MOST_PORT),
        }
        return _out_of_range(self, ranges)


def parse_duration_ms(value: str | float, what: str = "duration") -> int:
    """Return the nearest milliseconds of `"5s"`, `"100ms"`, `"1m"`, `"2 hours"`, `"1d"`; numbers are seconds.

    Raises:
        UsageError: not a duration.
    """
    return round(_milliseconds(value, what))


def parse_duration_us(value: str | float, what: str = "duration") -> int:
    """Return the nearest microseconds of a duration of event time; see `parse_duration_ms`.

    Raises:
        UsageError: not a duration.
    """
    return round(_milliseconds(value, what) * 1000)


def _milliseconds(value: str | float, what: str) -> Decimal:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return Decimal(str(value)) * 1000
    # other types are possible: a function for a session's gap
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value if type(value) is str else "")
    if match is None or match[2] not in _UNITS_MS:
        msg = f"{what} {argument_text(value)} is not a duration"
        raise UsageError(msg, hint="write a number and ms, s, m, h or d, such as '500ms', '5s', '1m'")
    return Decimal(match[1]) * _UNITS_MS[match[2]]


def parse_bytes(value: str | int, what: str) -> int:
    """Return bytes of `"256MB"`, `"1GB"`...; numbers are bytes; units are powers of 1024.

    Raises:
        UsageError: not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|[KMGT](?:I?B)?)\s*", str(value).upper())
    if match is None:
        msg = f"{what} {value!r} is not a size"
        raise UsageError(msg, hint="write for example '256MB' or '1GB'")
    return int(float(match[1]) * _UNITS_BYTES[match[2][0]])


def with_overrides(settings: JobSettings, overrides: dict[str, str]) -> JobSettings:
    """Return `settings` with `key=value` texts applied; keys are field names, `restart.kind` style for the strategy.

    A name may be given without its `_ms` or `_bytes`; the value then needs a unit.

    Raises:
        UsageError: unknown key, or a value of the wrong type or out of range.
    """
    return in_range(overridden(settings, overrides))


def overridden(settings: S, overrides: Mapping[str, Any]) -> S:
    """Return `settings` with the values of dotted names replaced, before ranges of several settings are checked.

    Raises:
        UsageError: unknown key or a value of the wrong type.
    """
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    for key, value in overrides.items():
        target: Any = plain
        *parents, leaf = key.replace("-", "_").split(".")
        for number, parent in enumerate(parents):
            if not isinstance(target.get(parent), dict):
                raise UsageError(
                    f"unknown setting {key!r}", hint=did_you_mean(key, _names(target, parents[:number], leaf))
                )
            target = target[parent]
        given, leaf = leaf, next((name for name in (leaf, f"{leaf}_ms", f"{leaf}_bytes") if name in target), leaf)
        if leaf not in target:
            raise UsageError(f"unknown setting {key!r}", hint=did_you_mean(key, _names(target, parents, given)))
        plain_number = not isinstance(value, str) or value.strip().isdigit()
        target[leaf] = value if given == leaf and plain_number else _typed(value, leaf, key)
    try:
        return msgspec.convert(plain, type(settings), strict=False)
    except msgspec.ValidationError as error:
        fault, hint = wrong_value(error, plain, settings)
        raise UsageError(f"setting {fault}", hint=hint) from error


def _out_of_range(settings: msgspec.Struct, ranges: Mapping[str, tuple[float, float]]) -> str:
    for name, (least, most) in ranges.items():
        if not least <= getattr(settings, name) <= most:
            return f"{name} is {getattr(settings, name)}, but has to be from {least} to {most}"
    return ""


def _names(settings: Mapping[str, Any], parents: Sequence[str], given: str) -> list[str]:
    """Return the names of settings of one group, with its name, and with the unit only if `given` has one."""
    unit = next((unit for unit in ("_ms", "_bytes") if given.endswith(unit)), "")
    names = (name if unit else name.removesuffix("_ms").removesuffix("_bytes") for name in settings)
    return sorted(".".join((*parents, name)) for name in names)


def wrong_value(error: msgspec.ValidationError, values: Mapping[str, Any], settings: msgspec.Struct) -> tuple[str, str]:
    """Return what is wrong with a value that does not fit its setting, and a hint about the values that do."""
    found = _PATH.search(str(error))
    if found is None:
        return str(error), _HINT
    default: Any = settings
    kind: Any = type(settings)
    name, value = found[1], typing.cast("Any", values)
    for part in name.split("."):
        kind, default = typing.get_type_hints(kind)[part], getattr(default, part)
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    if typing.get_origin(kind) is Literal:
        return f"{name}={value!r} is not known", f"one of {', '.join(typing.get_args(kind))}"
    if isinstance(default, msgspec.Struct):
        members = ", ".join(f"{name}.{member}" for member in default.__struct_fields__)
        return f"{name}={value!r} is not known: {name} is a group of settings", f"one of {members}"
    if isinstance(default, tuple):
        return f"{name}={value!r} is not a list", f"ps.Environment({name}=[...])"
    example = 1000 if default is None else str(default).lower()
    what = {bool: "is neither true nor false", float: "is not a number", str: "is not a text"}
    return f"{name}={value!r} {what.get(type(default), 'is not a whole number')}", f"for example {name}={example}"


def in_range(settings: JobSettings) -> JobSettings:
    """Return `settings` after checking their ranges.

    Raises:
        UsageError: one is out of range.
    """
    if settings.fault:
        raise UsageError(settings.fault, hint=range_hint(settings.fault))
    return settings


def range_hint(fault: str) -> str:
    """Return a hint for the `fault` of settings."""
    if fault.startswith("checkpoint_interval_ms "):
        return "give a time such as '5s', or leave the setting out for no periodic checkpoints"
    return "change this setting"


def _typed(value: Any, field: str, given: str) -> Any:
    """Return the value of a field; errors name the setting as it was given."""
    if field.endswith("_ms"):
        return parse_duration_ms(value, given)
    if field.endswith("_bytes"):
        return parse_bytes(value, given)
    return value
