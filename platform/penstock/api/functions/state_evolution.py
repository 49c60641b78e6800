"""Metadata of a value's row type for later versions of the job: the defaults of its fields, and their former names.

Called by `penstock.api.functions.process_states`; read by `penstock.core.evolution` when a snapshot has other fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.core.errors import GraphError
from penstock.core.evolution import DEFAULT, WAS, default_text
from penstock.core.names import near


def evolving(schema: pa.Schema, row_type: Any, renamed: Mapping[str, str], where: str) -> pa.Schema:
    """Return the value columns with defaults and former names in their metadata.

    Raises:
        GraphError: `renamed` names no field, or a default is not of its field's type.
    """
    for name, was in renamed.items():
        if name not in schema.names:
            raise GraphError(f"{where}: renamed={{{name!r}: {was!r}}} names no field", hint=near(name, schema.names))
    defaults = _defaults(row_type)
    fields = []
    for field in schema:
        more: dict[bytes, bytes] = {}
        if defaults.get(field.name) is not None:
            try:
                more[DEFAULT] = default_text(defaults[field.name], field.type)
            except (pa.ArrowException, TypeError, ValueError) as error:
                msg = f"{where}: the default of {field.name} is {defaults[field.name]!r}, which is no {field.type}"
                raise GraphError(msg, hint="give it a default of the field's type") from error
        if field.name in renamed:
            more[WAS] = renamed[field.name].encode()
        fields.append(field.with_metadata(more) if more else field)
    return pa.schema(fields)


def _defaults(row_type: Any) -> dict[str, Any]:
    """Return the defaults of a NamedTuple, dataclass or `ps.Schema`; those made by a function are ignored."""
    if hasattr(row_type, "model_fields"):
        return {n: f.default for n, f in row_type.model_fields.items() if not f.is_required() and not f.default_factory}
    if dataclasses.is_dataclass(row_type):
        found = {f.name: f.default for f in dataclasses.fields(row_type)}
        return {name: value for name, value in found.items() if value is not dataclasses.MISSING}
    return dict(getattr(row_type, "_field_defaults", {}))
