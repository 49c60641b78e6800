"""The states that the class of a process function declares: columns, types, defaults and former names of fields.

Called by `api.functions.process_functions`; `operators.process.keyed_process` binds the states.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.functions.row_functions import is_row_type
from penstock.core.errors import GraphError, argument_text, did_you_mean, misuse_hint
from penstock.core.evolution import DEFAULT, WAS, default_text
from penstock.core.schema import arrow_field_of, arrow_schema_of, schema_to_text
from penstock.functions.broadcast_state import BROADCAST, BroadcastState
from penstock.functions.folding_states import AggregatingState, ReducingState
from penstock.functions.keyed_states import ListState, MapState
from penstock.functions.migration import MigrateValues
from penstock.functions.operator_lists import OperatorListState, UnionState
from penstock.functions.process_function import ValueState
from penstock.functions.state_handles import Declaration, declaration_of
from penstock.functions.state_ttl import ttl_options
from penstock.graph.validation import require_name
from penstock.kernels.keys.key_types import is_key_type
from penstock.operators.process.broadcast_binding import broadcast_schema
from penstock.operators.process.plain_process import MODES, saved_schema


def evolving(schema: pa.Schema, row_type: Any, renamed: Mapping[str, str], where: str) -> pa.Schema:
    """Return the value columns with defaults and former names in their metadata.

    Raises:
        GraphError: `renamed` names no field, or a default is not of its field's type.
    """
    for name, was in renamed.items():
        if name not in schema.names:
            raise GraphError(
                f"{where}: renamed={{{name!r}: {was!r}}} names no field", hint=did_you_mean(name, schema.names)
            )
    defaults = _defaults(row_type)
    fields = []
    for field in schema:
        more: dict[bytes, bytes] = {}
        if defaults.get(field.name) is not None:
            try:
                more[DEFAULT] = default_text(defaults[field.name], field.type)
            except (pa.ArrowException, TypeError, ValueError) as error:
                msg = f"{where}: the default of {field.name} is {defaults[field.name]!r}, which is no {field.type}"
                raise GraphError(msg, hint=_default_hint(row_type, field.name)) from error
        if field.name in renamed:
            more[WAS] = renamed[field.name].encode()
        fields.append(field.with_metadata(more) if more else field)
    return pa.schema(fields)


def _default_hint(row_type: Any, name: str) -> str:
    """Return an example of a field with a default of its type."""
    kind = typing.get_type_hints(row_type).get(name)
    if kind is None or kind not in _EXAMPLE_DEFAULTS:
        return "give it a default of the field's type"
    return (
        f"for example {name}: {kind.__name__} = {_EXAMPLE_DEFAULTS[kind]}, or `{name}: {kind.__name__} | None = None`"
    )


def _defaults(row_type: Any) -> dict[str, Any]:
    """Return the defaults of a NamedTuple, dataclass or `ps.Schema`; those made by a function are ignored."""
    if hasattr(row_type, "model_fields"):
        return {n: f.default for n, f in row_type.model_fields.items() if not f.is_required() and not f.default_factory}
    if dataclasses.is_dataclass(row_type):
        found = {f.name: f.default for f in dataclasses.fields(row_type)}
        return {name: value for name, value in found.items() if value is not dataclasses.MISSING}
    return dict(getattr(row_type, "_field_defaults", {}))


_EXAMPLE_DEFAULTS: dict[Any, str] = {int: "0", float: "0.0", bool: "False", str: '""', bytes: 'b""'}
_TYPES = "int, float, bool, str, bytes, datetime, date, Decimal with ps.Precision, a tuple or row type of these"
_KEY_TYPES = "int, bool, str, bytes, datetime, date, Decimal with ps.Precision, a tuple or NamedTuple of these"
#: Class of the declaration -> an example of its use.
_EXAMPLES: dict[type, str] = {
    ValueState: "ps.ValueState[int] = ps.value_state()",
    ListState: "ps.ListState[int] = ps.list_state()",
    BroadcastState: "ps.BroadcastState[str, int] = ps.broadcast_state()",
    OperatorListState: "ps.OperatorListState[int] = ps.operator_list_state()",
    UnionState: "ps.UnionState[int] = ps.union_state()",
    MapState: "ps.MapState[str, int] = ps.map_state()",
    ReducingState: "ps.ReducingState[int] = ps.reducing_state(max)",
    AggregatingState: "ps.AggregatingState[int, float] = ps.aggregating_state(Mean())",
}


class DeclaredState(msgspec.Struct, frozen=True):
    """One state: its value columns, the config entries of its kind (empty for a value), its row types by name."""

    values: pa.Schema
    kind: dict[str, Any]
    types: dict[Any, Any]

    @property
    def is_operator_state(self) -> bool:
        """Whether it is a state of a subtask, not of its keys: a list or union."""
        return self.kind.get("kind") in MODES

    @property
    def saved(self) -> str:
        """The columns of a state that is not by key, as text, for the comparison of `penstock check`."""
        keys = self.kind.get("keys")
        if keys is None:
            return schema_to_text(saved_schema(self.values, self.kind["kind"]))
        return schema_to_text(broadcast_schema(keys, self.values))


def declared_states(function: Any, where: str) -> dict[str, DeclaredState]:
    """Return every state that the class of a function and its bases declare.

    Raises:
        GraphError: one has no annotation or is only annotated, or its type cannot be kept.
    """
    attributes = {name: value for base in reversed(type(function).__mro__) for name, value in vars(base).items()}
    _require_declarations(attributes, getattr(function, "__dict__", {}), where)
    declared = {name: value for name, value in attributes.items() if isinstance(value, tuple(_EXAMPLES))}
    try:
        hints = typing.get_type_hints(type(function), include_extras=True)
    except (NameError, TypeError) as error:
        if not declared:
            return {}
        msg = f"{where}: the annotations of its states cannot be read: {error}"
        # from Python 3.14 on, annotations are evaluated here, not where the class is written
        hint = misuse_hint(error) or "the types of states must be known where the class is written"
        raise GraphError(msg, hint=hint) from error
    for name, annotated in hints.items():
        if get_origin(annotated) in _EXAMPLES and name not in declared:
            value = f"{argument_text(attributes[name])} is no state" if name in attributes else "has no value"
            msg = f"{where}: state {name!r} is annotated, but {value}"
            raise GraphError(msg, hint=f"give it a value: {name}: {_EXAMPLES[get_origin(annotated)]}")
    return {name: _state(name, state, hints.get(name), f"{where}: state {name!r}") for name, state in declared.items()}


def _require_declarations(attributes: dict[str, Any], own: dict[str, Any], where: str) -> None:
    """Check that no attribute of a class is the type of a state, and that no state is an attribute of the object.

    Raises:
        GraphError: there is one.
    """
    for name, value in attributes.items():
        if get_origin(value) in _EXAMPLES:
            msg = f"{where}: state {name!r} is a type and no state"
            raise GraphError(msg, hint=f"annotate it and give it a value: {name}: {_EXAMPLES[get_origin(value)]}")
    for name, value in own.items():
        if isinstance(value, tuple(_EXAMPLES)):
            msg = f"{where}: state {name!r} is an attribute of the object, not of its class"
            raise GraphError(msg, hint=f"declare it in the class: {name}: {_EXAMPLES[type(value)]}")


def _require_annotation(name: str, state: Any, annotated: Any, where: str) -> None:
    """Check that the annotation of a state is its class, with types. Raises GraphError."""
    origin = get_origin(annotated)
    if origin is type(state):
        return
    example = _EXAMPLES[type(state)]
    if annotated is None or annotated is type(state):
        msg = f"{where} has no type"
    else:
        shown = getattr(origin or annotated, "__name__", repr(annotated))
        msg = f"{where} is annotated as {shown}, but {example.partition(' = ')[2]} makes a {type(state).__name__}"
    raise GraphError(msg, hint=f"annotate it: {name}: {example}")


def _state(name: str, state: Any, annotated: Any, where: str) -> DeclaredState:
    require_name(name, "state")
    _require_annotation(name, state, annotated, where)
    args = get_args(annotated)
    declared = declaration_of(state)
    ttl = ttl_options(declared.ttl, where)
    if isinstance(state, ListState):
        schema, row_type = _columns(args[0], f"{where}: its element", where, nullable=True)
        _require_constant(row_type, where)
        old, function = _migrating(name, declared, where)
        return DeclaredState(schema, {"kind": "list", **ttl, **old}, {name: row_type, **function})
    if isinstance(state, (MapState, BroadcastState)):
        keys, key_type = _key_columns(args[0], where)
        schema, row_type = _columns(args[1], f"{where}: its value", where, nullable=True)
        _require_constant(row_type, where)
        name_of_kind = BROADCAST if isinstance(state, BroadcastState) else "map"
        old, function = ({}, {}) if isinstance(state, BroadcastState) else _migrating(name, declared, where)
        kind = {"kind": name_of_kind, "keys": schema_to_text(keys), **ttl, **old}
        return DeclaredState(schema, kind, {name: row_type, (name, "key"): key_type, **function})
    if isinstance(state, OperatorListState):
        schema, row_type = _columns(args[0], f"{where}: its element", where, nullable=False)
        kind_name = "union" if isinstance(state, UnionState) else "operator_list"
        return DeclaredState(evolving(schema, row_type, declared.renamed, where), {"kind": kind_name}, {name: row_type})
    if isinstance(state, AggregatingState):
        schema, row_type = accumulator_columns(declared.fold, where)
        return DeclaredState(schema, {"kind": "aggregating", **ttl}, {name: row_type})
    schema, row_type = _columns(args[0], f"{where}: its value", where, nullable=False)
    if isinstance(state, ReducingState):
        if not callable(declared.fold):
            raise GraphError(f"{where}: {declared.fold!r} is no function", hint=f"{_EXAMPLES[ReducingState]}")
        return DeclaredState(schema, {"kind": "reducing", **ttl}, {name: row_type})
    evolved, types = evolving(schema, row_type, declared.renamed, where), {name: row_type}
    old, function = _migrating(name, declared, where)
    kind = {"kind": "value", **old, **ttl} if old else ttl
    return DeclaredState(evolved, kind, {**types, **function})


def _migrating(name: str, declared: Declaration, where: str) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return the config entries and the payload of a state's migration; empty without one."""
    migration: Any = declared.migrate
    if migration is None:
        return {}, {}
    if not isinstance(migration, MigrateValues) or not callable(migration.function):
        msg = f"{where}: {migration!r} is no migration"
        raise GraphError(msg, hint="make one: migrate=ps.migrate(function, was=Old)")
    was = _columns(migration.was, f"{where}: its type in was=", where, nullable=False)[0]
    return {"migrates": schema_to_text(was)}, {(name, "migrate"): migration}


def accumulator_columns(aggregator: Any, where: str) -> tuple[pa.Schema, Any]:
    """Return the columns of an aggregator's accumulators, and their row type: `tuple` for tuples, None for a value.

    Raises:
        GraphError: it is no aggregator, or the type is not known or cannot be kept.
    """
    missing = [name for name in ("create_accumulator", "add", "get_result") if not hasattr(aggregator, name)]
    if missing or isinstance(aggregator, type):
        raise GraphError(
            f"{where}: {aggregator!r} is no aggregator",
            hint="make one of a class with create_accumulator, add, get_result and merge, such as a ps.Aggregator",
        )
    found = typing.get_type_hints(type(aggregator).create_accumulator, include_extras=True).get("return")
    if found is None or isinstance(found, typing.TypeVar):
        msg = f"{where}: the type of its accumulator is not known"
        raise GraphError(msg, hint="annotate it: def create_accumulator(self) -> tuple[int, int]")
    return _columns(found, f"{where}: its accumulator", where, nullable=False)


def _columns(hint: Any, what: str, where: str, *, nullable: bool) -> tuple[pa.Schema, Any]:
    """Return the columns of a type, and its row type if it has several: `tuple` for a plain tuple."""
    row_type = hint if is_row_type(hint) else None
    members = get_args(hint) if get_origin(hint) is tuple else ()
    try:
        if members and Ellipsis not in members:
            row_type = tuple
            schema = pa.schema([arrow_field_of(f"f{i}", part, f"its member {i}") for i, part in enumerate(members)])
        elif row_type is None:
            field = arrow_field_of("value", hint, what.removeprefix(f"{where}: "))
            schema = pa.schema([field if nullable else field.with_nullable(False)])
        else:
            schema = arrow_schema_of(row_type)
    except GraphError as error:
        raise GraphError(f"{where}: {error.message}", hint=f"use {_TYPES}") from error
    for field in schema:
        if pt.is_list(field.type):
            raise GraphError(f"{where}: {field.name} is a list, which a value cannot hold", hint=f"use {_TYPES}")
        if field.name.startswith("__"):
            raise GraphError(f"{where}: names that begin with '__' are reserved", hint="choose another name")
    return schema, row_type


def _key_columns(hint: Any, where: str) -> tuple[pa.Schema, Any]:
    """Return the columns of a map's key and its row type."""
    schema, row_type = _columns(hint, f"{where}: its map key", where, nullable=True)
    if row_type is not None and not issubclass(row_type, tuple):
        raise GraphError(f"{where}: {row_type.__name__} cannot be a map key", hint=f"use {_KEY_TYPES}")
    for field in schema:
        if field.nullable:
            raise GraphError(f"{where}: a map key cannot be None", hint="leave out the `| None`")
        if pt.is_floating(field.type) or not is_key_type(field.type):
            raise GraphError(f"{where}: {field.type} cannot be (part of) a map key", hint=f"use {_KEY_TYPES}")
    return schema, row_type


def _require_constant(row_type: Any, where: str) -> None:
    """Check that elements are immutable: they stay in memory as objects, and a restart would lose a change in place.

    Raises:
        GraphError: rows of the type can be changed.
    """
    frozen = getattr(getattr(row_type, "__dataclass_params__", None), "frozen", True)
    if not frozen or typing.is_typeddict(row_type):
        raise GraphError(
            f"{where}: a {row_type.__name__} can be changed in place, and a checkpoint would miss the change",
            hint="use a NamedTuple, a ps.Schema or @dataclass(frozen=True), and put a new one to change it",
        )
