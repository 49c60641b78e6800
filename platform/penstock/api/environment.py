"""`ps.Environment`: the start and the end of a job definition, and its settings as keywords.

Durations are texts such as `"5s"`, sizes such as `"256MB"`; names are checked.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypedDict, Unpack

import msgspec

from penstock.api.building.executors import current_executor, current_overrides, set_default_executor, use_executor
from penstock.api.building.flow import Flow
from penstock.api.building.notebook import text_html
from penstock.api.functions.watermark_checks import check_strategy
from penstock.api.streams import DataStream
from penstock.api.watermarks import WatermarkStrategy, code_of
from penstock.config.config_file import configuration
from penstock.config.settings import (
    JobSettings,
    ResourceProfile,
    RestartStrategy,
    in_range,
    parse_bytes,
    parse_duration_ms,
    with_overrides,
    wrong_value,
)
from penstock.connector.staging import DEAD_LETTER_SCHEMA, DEAD_LETTER_TAG
from penstock.core.errors import GraphError, UsageError, call_site, did_you_mean
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.eventtime.strategy import strategy_to_builtins
from penstock.graph.chaining import build_job_graph
from penstock.graph.explain import explain
from penstock.graph.job_graph import JobGraph, OperatorSpec
from penstock.graph.stream_graph import StreamGraph, StreamGraphBuilder, StreamNode, Upstream
from penstock.graph.validation import require_name
from penstock.operators.rows.columns import with_ts

if TYPE_CHECKING:
    from penstock.api.connectors import Source
    from penstock.graph.executor import JobHandle, JobResult

__all__ = ["Environment", "set_default_executor", "use_executor"]

_FIELDS = JobSettings.__struct_fields__
#: Settings that are groups: their fields.
_GROUPS: dict[str, frozenset[str]] = {
    name: frozenset(value) for name, value in msgspec.to_builtins(JobSettings()).items() if isinstance(value, dict)
}
#: Default folder of checkpoints, below the working directory.
DEFAULT_CHECKPOINTS = ".penstock/checkpoints"


class SettingsKeywords(TypedDict, total=False):
    """Further keywords of `ps.Environment`; the defaults are those of `JobSettings`."""

    key_groups: int
    checkpoint_timeout: str | float
    checkpoint_min_pause: str | float
    checkpoint_max_age: str | float
    checkpoint_tolerated_failures: int
    checkpoint_mode: Literal["exactly-once", "at-least-once"]
    max_concurrent_checkpoints: int
    unaligned_checkpoints: bool
    aligned_checkpoint_timeout: str | float
    retained_checkpoints: int
    managed_memory: str | int
    remote_local: str | int
    local_recovery: str | int
    prepare_state: str | int
    buffer_timeout: str | float
    buffer_size: str | int
    exclusive_buffers: int
    floating_buffers: int
    buffer_debloat_target: str | float
    sink_pending_max: str | int
    sink_pending_max_epochs: int
    slot_priority: int
    slot_resources: Sequence[ResourceProfile]
    restart: RestartStrategy | str
    show_values_in_errors: bool
    requirements: Sequence[str]
    python_path: Sequence[str]


def settings_from(keywords: Mapping[str, Any]) -> JobSettings:
    """Return the settings of these keywords; None means the default.

    Raises:
        UsageError: an unknown keyword (names the nearest), or a value of the wrong type or out of its range.
    """
    fields: dict[str, Any] = {}
    for keyword, value in keywords.items():
        if value is not None:
            fields.update(_field(keyword, value))
    defaults = configuration().settings.job
    fields["checkpoint_root"] = checkpoint_root(fields.get("checkpoint_root", "") or defaults.checkpoint_root)
    fields = {**msgspec.to_builtins(defaults), **fields}
    try:
        return in_range(msgspec.convert(fields, JobSettings))
    except msgspec.ValidationError as error:
        fault, hint = wrong_value(error, fields, JobSettings())
        raise UsageError(f"ps.Environment: {fault}", hint=hint) from error


def checkpoint_root(given: str) -> str:
    """Return the root as a URI or an absolute path, so that it is the same place for every process of a cluster.

    Raises:
        UsageError: a URI with one slash, which would be a folder of that name.
    """
    root = given or DEFAULT_CHECKPOINTS
    scheme, colon, rest = root.partition(":/")
    if colon and scheme.isalnum() and not rest.startswith("/"):
        msg = f"checkpoint_root={root!r} is neither a folder nor an address"
        raise UsageError(msg, hint=f"write {scheme}://{rest}, with two slashes")
    return root if "://" in root else str(Path(root).expanduser().absolute())


def _field(keyword: str, value: Any) -> dict[str, Any]:
    if keyword == "checkpoints":
        keyword = "checkpoint_root"
    if keyword == "restart":
        value = {"kind": value} if isinstance(value, str) else msgspec.to_builtins(value)
    if keyword in _GROUPS and isinstance(value, Mapping):
        return {keyword: _group(keyword, value)}
    if keyword in _FIELDS:
        if isinstance(value, Path):
            return {keyword: str(value)}
        return {keyword: tuple(value) if isinstance(value, (list, set)) else value}
    if f"{keyword}_ms" in _FIELDS:
        return {f"{keyword}_ms": parse_duration_ms(value, keyword)}
    if f"{keyword}_bytes" in _FIELDS:
        return {f"{keyword}_bytes": parse_bytes(value, keyword)}
    msg = f"ps.Environment: unknown setting {keyword!r}"
    raise UsageError(msg, hint=did_you_mean(keyword, sorted(_names())))


def _group(keyword: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a group of settings, such as `autoscaler={"enabled": True, "restart_time": "10s"}`."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name in _GROUPS[keyword]:
            fields[name] = value
        elif f"{name}_ms" in _GROUPS[keyword]:
            fields[f"{name}_ms"] = parse_duration_ms(value, f"{keyword}.{name}")
        else:
            names = sorted(field.removesuffix("_ms") for field in _GROUPS[keyword])
            raise UsageError(f"ps.Environment: unknown setting {keyword}.{name}", hint=did_you_mean(name, names))
    return fields


def _names() -> list[str]:
    return ["checkpoints", *(name.removesuffix("_ms").removesuffix("_bytes") for name in _FIELDS)]


class Environment:
    """Builds one job and runs it.

    The keywords are the job's settings (`penstock.config.settings.JobSettings`); durations are texts such as `"5s"` or
    seconds.
    """

    def __init__(
        self,
        parallelism: int | None = None,
        *,
        checkpoint_interval: str | float | None = None,
        checkpoint_root: str | Path | None = None,
        state_backend: Literal["hashmap", "rocksdb", "remote"] | None = None,
        require_uids: bool = True,
        **settings: Unpack[SettingsKeywords],
    ) -> None:
        """Make an environment; nothing is started. With `require_uids=False`, stateful operators need no uid.

        Raises:
            UsageError: an unknown setting or a value that cannot be used.
        """
        self.builder = StreamGraphBuilder()
        self.require_uids = require_uids
        self._settings = settings_from(
            {
                "parallelism": parallelism,
                "checkpoint_interval": checkpoint_interval,
                "checkpoint_root": checkpoint_root,
                "state_backend": state_backend,
                **settings,
            }
        )

    @classmethod
    def from_args(cls, arguments: Sequence[str] | None = None, **defaults: Any) -> Self:
        """Make an environment from the command line: `--parallelism N`, `--checkpoint-interval 5s`, `--set key=value`.

        `defaults` are keywords of `Environment`, used for settings that the command line omits; other arguments are
        left to the job file.
        """
        parser = _Arguments(add_help=False, allow_abbrev=False)
        for option in ("parallelism", "checkpoint-interval", "checkpoint-root", "state-backend"):
            parser.add_argument(f"--{option}")
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
        known, _ = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
        given = {key: value for key, value in vars(known).items() if key != "set" and value is not None}
        if "parallelism" in given:
            given["parallelism"] = _number(given["parallelism"])
        environment = cls(**{**defaults, **given})
        overrides = dict(_key_value(text) for text in known.set)
        environment._settings = with_overrides(environment._settings, overrides)
        return environment

    @property
    def settings(self) -> JobSettings:
        """The job's settings, including overrides of the command line."""
        settings = with_overrides(self._settings, current_overrides())
        return msgspec.structs.replace(settings, checkpoint_root=checkpoint_root(settings.checkpoint_root))

    def from_source(self, source: Source, *, watermarks: WatermarkStrategy | None = None, uid: str = "") -> DataStream:
        """Read a source; `watermarks` defines the event-time column and the bound of disorder.

        Raises:
            GraphError: not a source, or a strategy that does not fit its columns.
        """
        if not callable(getattr(source, "spec", None)):
            msg = f"from_source: {source!r} is not a source"
            raise GraphError(msg, hint="use a connector, for example penstock_connectors.kafka.KafkaSource")
        if uid:
            require_name(uid, "uid")
        spec = source.spec()
        schema = spec_schema = schema_from_text(spec.schema)
        name = f"Source: {uid or type(source).__name__}"
        if check_strategy(watermarks, schema, name):
            schema = with_ts(schema)
        payload = code_of(watermarks, spec_schema, name)
        operator = OperatorSpec(
            uid=uid,
            name=name,
            kind="source",
            config={"source": msgspec.to_builtins(spec), "watermarks": strategy_to_builtins(watermarks)},
            payload=payload,
            python=watermarks is not None and watermarks.kind == "generator",
            stateful=True,
            output_schema=schema_to_text(schema),
        )
        dead_letters = spec.config.get("on_bad_record") == DEAD_LETTER_TAG
        side_outputs = {DEAD_LETTER_TAG: schema_to_text(DEAD_LETTER_SCHEMA)} if dead_letters else {}
        node = self.builder.add(
            StreamNode(
                id=0,
                operator=operator,
                side_outputs=side_outputs,
                side_outputs_optional=bool(spec.config.get("dead_letter_topic")),
                where=getattr(source, "created_at", "") or call_site(),
            )
        )
        row_type = getattr(source, "row_type", source.row_schema)
        row_type = row_type if isinstance(row_type, type) else None
        return DataStream(self, Flow(upstreams=(Upstream(node=node),), schema=schema, row_type=row_type), node)

    def from_collection(
        self, rows: Any, row_type: Any = None, *, watermarks: WatermarkStrategy | None = None, uid: str = "collection"
    ) -> DataStream:
        """Read rows of this process, for tests, notebooks and small tables: at most 16 MiB, in their order.

        `rows` are row objects or dicts of `row_type` (a `ps.Schema`, dataclass, NamedTuple or Arrow schema); or a
        Polars DataFrame or Arrow table, which needs no type.

        Raises:
            GraphError: rows that do not fit the type, or more than 16 MiB.
        """
        from penstock.api.building.collection import collection_source

        return self.from_source(collection_source(rows, row_type), watermarks=watermarks, uid=uid)

    def stream_graph(self, name: str = "job", *, only: Collection[int] | None = None) -> StreamGraph:
        """Return the graph as written; with `only`, just these operators and their inputs."""
        return self.builder.build(name, self.settings, only=only, require_uids=self.require_uids)

    def job_graph(self, name: str = "job", *, only: Collection[int] | None = None) -> JobGraph:
        """Return the chained graph, as it is submitted.

        Raises:
            GraphError: the job cannot run as written; the hint names a correction.
        """
        graph = build_job_graph(self.stream_graph(name, only=only))
        return msgspec.structs.replace(graph, settings=_with_own_folders(graph))

    def explain(self, name: str = "job") -> str:
        """Return the three graphs as text: as written, chained, and in slots; sinks and uids may be missing."""
        stream_graph = self.builder.build(name, self.settings, require_uids=False)
        return explain(stream_graph, build_job_graph(stream_graph, complete=False))

    def _repr_html_(self) -> str:
        return text_html(self.explain())

    def execute(self, name: str) -> JobResult:
        """Run the job and wait for its end.

        Raises:
            JobFailedError: it ended FAILED.
        """
        active = current_executor()
        result = active.executor.execute(self.job_graph(name))
        active.results.append(result)
        return result

    def submit(self, name: str) -> JobHandle:
        """Start the job and return at once."""
        return current_executor().executor.submit(self.job_graph(name))


class _Arguments(argparse.ArgumentParser):
    """A parser that raises an error of penstock instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint="see ps.Environment.from_args")


def _with_own_folders(graph: JobGraph) -> JobSettings:
    """Add folders to the settings so that workers can import the modules that functions reference."""
    settings = graph.settings
    needed = any(operator.python for vertex in graph.vertices for operator in vertex.operators)
    if not needed or settings.python_path:
        return settings
    return msgspec.structs.replace(settings, python_path=_own_folders())


def _own_folders() -> tuple[str, ...]:
    """Return the job file's folder and the import folders that do not belong to the installed Python."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(main).resolve().parent] if main is not None else []
    folders += [Path(place).resolve() for place in sys.path]  # an empty one is the working directory: a notebook's
    installed = [Path(place).resolve() for place in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)]
    own = (f for f in folders if f.is_dir() and not any(f == place or place in f.parents for place in installed))
    return tuple(dict.fromkeys(map(str, own)))


def _number(text: str) -> int:
    if not text.isdigit():
        msg = f"--parallelism {text!r} is not a number"
        raise UsageError(msg, hint="write for example --parallelism 4")
    return int(text)


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        msg = f"--set {text!r} has no value"
        raise UsageError(msg, hint="write --set key=value")
    return key, value
