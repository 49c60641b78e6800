"""The configuration of a cluster and the defaults of its jobs: `penstock.toml`, environment variables, options.

Read by `ps.Environment` (section `job`), by the commands that start processes or call a cluster, and by
`penstock config show`, which prints the origin of each value. By priority the origins are an option of the command
line, an environment variable, the file, the default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.config.security import FOLDER_VARIABLE
from penstock.config.settings import ClusterSettings, JobSettings, overridden, range_hint
from penstock.core.errors import UsageError

#: Path of the file; without it, the file of this name in the working folder is read.
FILE_VARIABLE, FILE_NAME = "PENSTOCK_CONFIG", "penstock.toml"
HOME_VARIABLE = "PENSTOCK_HOME"
#: Origin of values of the command line.
OPTION = "option"
#: `PENSTOCK__SECTION__NAME` sets `section.name`.
PREFIX, _SEPARATOR = "PENSTOCK__", "__"
#: Settings whose environment variable has a special name.
VARIABLES = {
    "job.checkpoint_root": "PENSTOCK_CHECKPOINT_ROOT",
    "cluster.security": FOLDER_VARIABLE,
    "cluster.log_format": "PENSTOCK_LOG_FORMAT",
    "jobmanager.otlp_endpoint": "PENSTOCK_OTLP_ENDPOINT",
    "client.cluster": "PENSTOCK_CLUSTER",
}
#: Settings that name a place; in the file, a relative path starts at the file's folder.
_PATHS = {"job.checkpoint_root", "cluster.ha_root", "cluster.security", "taskmanager.work_dir"}


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of JobManagers and TaskManagers."""

    #: Folder or `s3://bucket/prefix` with leadership and job records. TaskManagers without `taskmanager.jobmanager`
    #: find the leader there.
    ha_root: str = ".penstock/ha"
    #: Folder of certificates, tokens and secret; empty: none.
    security: str = ""
    #: Listen on addresses that others can reach, without TLS and tokens.
    insecure: bool = False
    log_format: Literal["text", "json"] = "text"


class TaskManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a TaskManager."""

    #: `HOST:PORT` of the JobManager, several with commas; empty: that of the leader of `cluster.ha_root`.
    jobmanager: str = ""
    #: 0: read from stdin before the registration.
    slots: int = 1
    work_dir: str = ".penstock/tm"
    #: Memory of the TaskManager with its workers; None: the container's limit, else 80 % of the host's memory.
    memory_bytes: int | None = None
    #: TaskManagers that share this host or container; without `memory`, each gets an equal part.
    host_taskmanagers: int = 1
    #: Memory of the supervisor and the system; None: a tenth of the total, from 128 MiB to 1 GiB.
    framework_memory_bytes: int | None = None
    #: Part of the total for rows in flight, within the two bounds.
    network_memory_fraction: float = 0.1
    network_memory_min_bytes: int = 64 << 20
    network_memory_max_bytes: int | None = None
    #: Part of the total for state, unless its size is given.
    managed_memory_fraction: float = 0.4
    managed_memory_bytes: int | None = None
    #: Memory limit of a worker, without mapped files; a worker above it is killed. None: the part of its slot.
    worker_memory_bytes: int | None = None
    #: Name of this TaskManager; empty: host name and process id.
    id: str = ""
    #: Name or address of this host's workers for other hosts; empty: all workers are on this host.
    data_host: str = ""
    #: Address that its workers listen on; empty: `data_host`.
    data_bind: str = ""
    #: Port of `/metrics` on loopback; 0: a free one.
    metrics_port: int = 0

    @property
    def fault(self) -> str:
        """Return an error text for a setting that is out of range; empty if all are in range."""
        if self.slots < 0:
            return f"slots is {self.slots}, but has to be at least 1"
        if self.host_taskmanagers < 1:
            return f"host_taskmanagers is {self.host_taskmanagers}, but has to be at least 1"
        for name, value in (
            ("network_memory_fraction", self.network_memory_fraction),
            ("managed_memory_fraction", self.managed_memory_fraction),
        ):
            if not 0 <= value < 1:
                return f"{name} is {value}, but has to be from 0 to less than 1"
        least, most = self.network_memory_min_bytes, self.network_memory_max_bytes
        if most is not None and most < least:
            return f"network_memory_max_bytes is {most}, but has to be at least network_memory_min_bytes, {least}"
        return ""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of commands and of the Python client."""

    #: URL of a JobManager, several with commas, or the HA root; empty: the local cluster.
    cluster: str = ""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, by section."""

    job: JobSettings = JobSettings()
    cluster: SharedSettings = SharedSettings()
    jobmanager: ClusterSettings = ClusterSettings()
    taskmanager: TaskManagerSettings = TaskManagerSettings()
    client: ClientSettings = ClientSettings()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration of one process, and where its values come from."""

    settings: Configuration
    #: Setting: option, environment variable or file that set it; a setting with its default is missing.
    origins: Mapping[str, str]
    #: The file that was read; None: there is none.
    path: Path | None

    def entries(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, value and origin of every setting."""
        for name, value in _flat(msgspec.to_builtins(self.settings)):
            yield name, value, self.origins.get(name, "default")


def configuration(
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Resolved:
    """Return the settings of a process that runs in `folder` (default: the working folder).

    `options` are values of the command line by setting, such as `{"taskmanager.slots": 2}`.

    Raises:
        UsageError: the file is missing or no TOML, or a setting is unknown, of the wrong type or out of range.
    """
    settings, origins = Configuration(), dict[str, str]()
    path = config_file(environment, folder or Path.cwd())
    sources = [] if path is None else [(str(path), name, value) for name, value in _from_file(path)]
    sources += [(f"${variable}", name, value) for variable, name, value in _from_environment(environment)]
    sources += [(OPTION, name, value) for name, value in (options or {}).items()]
    for origin, name, value in sources:
        try:
            settings = overridden(settings, {name: value})
        except UsageError as error:
            raise UsageError(f"{origin}: {error.message}", hint=error.hint) from error
        origins[_full(name, settings)] = origin
    return Resolved(_checked(settings, origins), origins, path)


def require_of_job(name: str, value: str) -> None:
    """Refuse a setting for a job that belongs in another section of the file.

    Raises:
        UsageError: it does; an unknown one with the nearest name of the section.
    """
    section = name.partition(".")[0]
    if section == "job" or section not in Configuration.__struct_fields__:
        return
    try:
        overridden(Configuration(), {name: value})
    except UsageError as error:
        msg = f"{error.message}; settings of {section} are in {FILE_NAME}, not in a job"
        raise UsageError(msg, hint=error.hint) from error
    variable = PREFIX + name.replace(".", _SEPARATOR).replace("-", "_").upper()
    hint = f"write it in section [{section}] of {FILE_NAME}, or set the environment variable {variable}"
    raise UsageError(f"{name!r} is not a setting of a job", hint=hint)


def home() -> Path:
    """Return the folder of local clusters' records and of the user's secret: $PENSTOCK_HOME or ~/.penstock."""
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".penstock")


def config_file(environment: Mapping[str, str], folder: Path) -> Path | None:
    """Return the absolute path of the file to read; None if there is none.

    Raises:
        UsageError: `$PENSTOCK_CONFIG` names no file.
    """
    named = environment.get(FILE_VARIABLE, "")
    path = Path(folder, named or FILE_NAME).absolute()
    if path.is_file():
        return path
    if named:
        raise UsageError(f"there is no configuration file {path}", hint=f"check --config or ${FILE_VARIABLE}")
    return None


def _from_file(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check its permissions") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="texts need quotes, numbers none") from error
    for name, value in _flat(content):
        is_path = name in _PATHS and isinstance(value, str) and value and "://" not in value
        yield name, str(path.parent / Path(value).expanduser()) if is_path else value


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield variable, setting and value."""
    for setting, variable in VARIABLES.items():
        if environment.get(variable):
            yield variable, setting, environment[variable]
    for variable in sorted(environment):
        if variable.startswith(PREFIX):
            yield variable, variable.removeprefix(PREFIX).lower().replace(_SEPARATOR, "."), environment[variable]


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each setting."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _full(name: str, settings: Configuration) -> str:
    """Return the name with its unit."""
    *parents, leaf = name.replace("-", "_").split(".")
    group: Any = settings
    for parent in parents:
        group = getattr(group, parent)
    fields = group.__struct_fields__
    return ".".join((*parents, next(field for field in (leaf, f"{leaf}_ms", f"{leaf}_bytes") if field in fields)))


def _checked(settings: Configuration, origins: Mapping[str, str]) -> Configuration:
    """Return the settings; raises UsageError if one is out of range."""
    faults = {
        "jobmanager": settings.jobmanager.fault,
        "taskmanager": settings.taskmanager.fault,
        "job": settings.job.fault,
    }
    for section, fault in faults.items():
        if fault:
            name = f"{section}.{fault.partition(' ')[0]}"
            raise UsageError(f"{origins.get(name, 'configuration')}: {section}.{fault}", hint=range_hint(fault))
    return settings
