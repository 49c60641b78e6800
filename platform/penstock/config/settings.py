"""Settings of a job and of a cluster, as frozen serialisable values; the one table of options with their defaults.

Built by `ps.Environment`, the command line (`--set key=value`) and REST; read by every process. Durations are
milliseconds, sizes are bytes. Secrets are never settings: they come from each process's environment.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from penstock.core.errors import UsageError
from penstock.core.names import near

_HINT = "see the table of settings in the docs"
_UNITS_MS = {"ms": 1.0, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3, "d": 86400e3}
_MOST_MS, _MOST_SUBTASKS = 366 * 86_400_000, 1 << 15
_UNITS_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class RestartStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """The restart strategy of a job, with Flink's names.

    What no restart can help ends the job with every kind (`jobmanager.deploy.failover`).
    """

    kind: Literal["fixed-delay", "exponential-delay", "failure-rate", "none"] = "exponential-delay"
    #: exponential-delay: in a row; the default is about a day of `max_delay_ms`.
    attempts: int = 1_500
    #: exponential-delay: after errors of functions of the user's, in a row: none before the run's first checkpoint. A
    #: run of `reset_after_ms` with a checkpoint begins a new row.
    user_code_attempts: int = 10
    delay_ms: int = 100
    max_delay_ms: int = 60_000
    backoff_multiplier: float = 2.0
    jitter: float = 0.1
    #: exponential-delay: after a run this long without failure the next delay is `delay_ms`.
    reset_after_ms: int = 60_000
    #: failure-rate: at most this many failures in `rate_interval_ms`.
    max_failures_per_interval: int = 3
    rate_interval_ms: int = 60_000


def failing_at_once(settings: JobSettings) -> JobSettings:
    """Return settings of a job that ends with its input: the first error of a function of the user's fails it."""
    restart = msgspec.structs.replace(settings.restart, user_code_attempts=0)
    return msgspec.structs.replace(settings, restart=restart)


class AutoscalerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When the JobManager changes a job's parallelism (`jobmanager.autoscale.scaling`); names as in Flink."""

    enabled: bool = False
    #: Say what would be done, and do nothing.
    dry_run: bool = True
    #: What is looked at is the mean of so long.
    metrics_window_ms: int = 60_000
    #: After a start nothing is looked at for so long.
    stabilization_interval_ms: int = 30_000
    #: Part of its time that a subtask should work, and how far from it is still well.
    target_utilization: float = 0.7
    utilization_boundary: float = 0.2
    #: Of each vertex; never more than there are slots and key groups for.
    min_parallelism: int = 1
    max_parallelism: int = 200
    #: What has piled up should be worked off in so long, and a restart pay in it.
    catch_up_duration_ms: int = 600_000
    #: Nothing is made smaller for so long after a change, and what did not work is not tried again.
    scale_down_interval_ms: int = 600_000
    #: What a restart costs, until some were measured.
    restart_time_ms: int = 10_000

    @property
    def fault(self) -> str:
        """Which of them is out of its range; nothing when all are in it."""
        ranges = {
            "metrics_window_ms": (0, _MOST_MS),
            "stabilization_interval_ms": (0, _MOST_MS),
            "target_utilization": (0.01, 1),
            "utilization_boundary": (0, 1),
            "max_parallelism": (1, _MOST_SUBTASKS),
            "min_parallelism": (1, self.max_parallelism),
            "catch_up_duration_ms": (1, _MOST_MS),
            "scale_down_interval_ms": (0, _MOST_MS),
            "restart_time_ms": (0, _MOST_MS),
        }
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                return f"autoscaler.{name} is {getattr(self, name)}, it has to be from {least} to {most}"
        return ""


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a job carries from its submitter."""

    parallelism: int = 1
    key_groups: int = 1024
    #: Root URI under which `<job name>/` lies: a folder path, `file://...` or `s3://bucket/prefix`.
    checkpoint_root: str = ""
    #: None: no periodic checkpoints (bounded jobs still take their final one).
    checkpoint_interval_ms: int | None = None
    checkpoint_timeout_ms: int = 600_000
    checkpoint_min_pause_ms: int = 0
    checkpoint_tolerated_failures: int = 0
    #: The job fails when no checkpoint completed for this long, however many failures are tolerated; 0 = off.
    checkpoint_max_age_ms: int = 0
    retained_checkpoints: int = 3
    state_backend: Literal["hashmap", "rocksdb", "remote"] = "hashmap"
    #: `remote`: fetched state on the local disk of one slot, beyond which what is cold is dropped.
    remote_local_bytes: int = 8 << 30
    #: Bound of hot tables, frozen pages and open segments of one slot.
    managed_memory_bytes: int = 256 << 20
    buffer_timeout_ms: int = 100
    buffer_size_bytes: int = 1 << 20
    #: Exclusive bytes per channel and floating bytes per gate = these counts x buffer_size_bytes.
    exclusive_buffers: int = 2
    floating_buffers: int = 8
    #: What windows get combined by key and pane before the shuffle: `exact` = what gives the same result in any order,
    #: `all` = sums and means of floats too, whose last digits then depend on the batches, `off` = nothing.
    combine: Literal["exact", "all", "off"] = "exact"
    #: A batch of fewer rows is not combined.
    combine_min_rows: int = 4096
    #: Nor one that would be left with more than this part of its rows; then the next are not tried for some time.
    combine_ratio: float = 0.1
    restart: RestartStrategy = RestartStrategy()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    #: Sink back-pressure limits for output not yet known published.
    sink_pending_max_bytes: int = 4 << 30
    sink_pending_max_epochs: int = 1000
    #: PEP 508 requirements installed once per TaskManager for this job.
    requirements: tuple[str, ...] = ()
    #: Local folders put on the workers' import path (the job file's own folder).
    python_path: tuple[str, ...] = ()


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What JobManager and TaskManagers of one cluster share."""

    heartbeat_interval_ms: int = 500
    #: A TaskManager silent for this long is dead.
    heartbeat_timeout_ms: int = 5_000
    #: Kernel lease of a worker: it dies when no heartbeat reached the coordinator for this long.
    worker_lease_ms: int = 4_000
    slots_per_taskmanager: int = 1
    #: Slots that the cluster will have at most; a larger job is refused. 0: not known.
    most_slots: int = 0
    slot_request_timeout_ms: int = 60_000
    rest_host: str = "127.0.0.1"
    rest_port: int = 0
    rpc_host: str = "127.0.0.1"
    rpc_port: int = 0
    #: URL of a collector that takes spans by OTLP over HTTP; empty: none are made.
    otlp_endpoint: str = ""
    #: Lines of the processes' logs.
    log_format: Literal["text", "json"] = "text"


def parse_duration_ms(value: str | float, what: str = "duration") -> int:
    """Return milliseconds of `"5s"`, `"100ms"`, `"1m"`, `"2h"`, `"1d"`; numbers are seconds.

    Raises:
        UsageError: not a duration.
    """
    if isinstance(value, (int, float)):
        return int(value * 1000)
    # anything may be given: a function for a session's gap
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*", value if type(value) is str else "")
    if match is None:
        msg = f"{what} {value!r} is not a duration"
        raise UsageError(msg, hint="write for example '500ms', '5s', '1m'")
    return int(float(match[1]) * _UNITS_MS[match[2]])


def parse_bytes(value: str | int, what: str) -> int:
    """Return bytes of `"256MB"`, `"1GB"`...; numbers are bytes; units are powers of 1024.

    Raises:
        UsageError: not a size.
    """
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", str(value).upper())
    if match is None:
        msg = f"{what} {value!r} is not a size"
        raise UsageError(msg, hint="write for example '256MB' or '1GB'")
    return int(float(match[1]) * _UNITS_BYTES[match[2].replace("I", "")])


def with_overrides(settings: JobSettings, overrides: dict[str, str]) -> JobSettings:
    """Return `settings` with `key=value` texts applied; keys are field names, `restart.kind` style for the strategy.

    A name may be given without its `_ms` or `_bytes`; the value then needs a unit.

    Raises:
        UsageError: unknown key or a value of the wrong type.
    """
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    for key, text in overrides.items():
        target: dict[str, Any] = plain
        *parents, leaf = key.replace("-", "_").split(".")
        for parent in parents:
            target = target.get(parent, {})
        given, leaf = leaf, next((name for name in (leaf, f"{leaf}_ms", f"{leaf}_bytes") if name in target), leaf)
        if leaf not in target:
            raise UsageError(f"unknown setting {key!r}", hint=near(key, sorted(plain)))
        target[leaf] = text if given == leaf and text.strip().isdigit() else _typed(text, leaf)
    try:
        return in_range(msgspec.convert(plain, JobSettings, strict=False))
    except msgspec.ValidationError as error:
        msg = f"setting {error}"
        raise UsageError(msg, hint=_HINT) from error


def in_range(settings: JobSettings) -> JobSettings:
    """Return `settings`.

    Raises:
        UsageError: those of the autoscaler are out of their ranges.
    """
    if settings.autoscaler.fault:
        raise UsageError(settings.autoscaler.fault, hint=_HINT)
    return settings


def _typed(text: str, key: str) -> Any:
    if key.endswith("_ms"):
        return parse_duration_ms(text, key)
    if key.endswith("_bytes"):
        return parse_bytes(text, key)
    return text
