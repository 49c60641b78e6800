"""Writes docs/reference/python-api.md from the docstrings: `python -m tests.support.api_reference`.

`tests/unit/docs/test_api_reference.py` checks that the page is what this writes.
"""

import enum
import inspect
import re
from pathlib import Path

import penstock as ps
from penstock import snapshots, testing

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
_HEAD = """# Python API

`import penstock as ps`. This page is generated from the docstrings: `python -m tests.support.api_reference`.
"""
#: Headings and the names below them, in the order of the page; a test checks that no name is missing.
_SECTIONS = {
    "Jobs": "Environment ResourceProfile RestartStrategy JobResult JobHandle JobExecutor",
    "Streams": "DataStream KeyedStream WindowedStream AllWindowedStream ConnectedStreams BroadcastConnectedStream",
    "Rows and event time": "Schema Precision WatermarkStrategy WatermarkGenerator",
    "Windows": "Tumbling Sliding Cumulative Session Global trigger evictor Trigger TriggerResult Evictor WindowElement",
    "Aggregates": "Aggregate Aggregator aggregating count sum min max mean var std first last collect count_distinct"
    " approx_count_distinct quantile",
    "Functions": "KeyedProcessFunction KeyedCoProcessFunction KeyedBroadcastProcessFunction ProcessFunction"
    " ProcessWindowFunction ProcessAllWindowFunction ProcessContext RowContext OpenContext BroadcastContext"
    " WindowContext AsyncRetryStrategy",
    "State": "ValueState value_state ListState list_state MapState map_state ReducingState reducing_state"
    " AggregatingState aggregating_state BroadcastState broadcast_state OperatorListState operator_list_state"
    " UnionState union_state StateTtlConfig migrate",
    "Errors": "PenstockError UsageError GraphError JobFailedError",
}
#: Classes that a user makes, so that their arguments are shown.
_MADE_BY_USERS = {
    *("Environment", "RestartStrategy", "Precision", "Tumbling", "Sliding", "Cumulative", "Session", "Global"),
    *("ResourceProfile", "StateTtlConfig", "JobHarness", "Fault"),
}
#: Inherited methods that are not part of a class's interface.
_HIDDEN = {"mro", "copy", "dict", "json", "construct", "from_orm", "parse_obj", "parse_raw", "schema_json", "validate"}


def page():
    """Return the text of the page."""
    parts = [_HEAD]
    for heading, names in _SECTIONS.items():
        parts.append(f"## {heading}\n")
        parts += [_entry(f"ps.{name}", getattr(ps, name)) for name in names.split()]
    parts.append("## Snapshots\n")
    parts += [_entry(f"ps.snapshots.{name}", getattr(snapshots, name)) for name in snapshots.__all__]
    parts.append("## Tests\n")
    parts += [_entry(f"penstock.testing.{name}", getattr(testing, name)) for name in testing.__all__]
    return "\n".join(parts)


def listed():
    """Return the names of `ps` on the page."""
    return {name for names in _SECTIONS.values() for name in names.split()} | {"snapshots"}


def _entry(name, found):
    text = [f"### {name}\n", _first(found) + "\n"]
    if inspect.isclass(found):
        rows = _members(found)
        heads = [f"[`ps.{parent.__name__}`](#ps{parent.__name__.lower()})" for parent in _parents(found)]
        if heads:
            text.append(f"It also has the methods of {' and '.join(heads)}.\n")
        if found.__name__ in _MADE_BY_USERS:
            text.append(f"```text\n{name}{_signature(found)}\n```\n")
    elif inspect.ismodule(found):
        rows = [(key, value) for key, value in vars(found).items() if _own(found, value) and not key.startswith("_")]
    else:
        text.append(f"```text\n{name}{_signature(found)}\n```\n")
        rows = []
    lines = [f"| `{label}{_signature(value)}` | {_cell(value)} |" for label, value in rows]
    if lines:
        text.append("\n".join(["| | |", "|---|---|", *lines]) + "\n")
    return "\n".join(text)


def _parents(kind):
    """Return the classes of the page from which a class inherits methods."""
    return [base for base in kind.__mro__[1:] if getattr(ps, base.__name__, None) is base and _members(base)]


def _own(module, value):
    return inspect.isfunction(value) and value.__module__ == module.__name__


def _members(kind):
    """Return public methods and properties, in the order of the source; those of `_parents` are left out."""
    if issubclass(kind, enum.Enum):
        return []
    found = {}
    above = {base for parent in _parents(kind) for base in parent.__mro__}
    for base in kind.__mro__:
        if not base.__module__.startswith("penstock") or base in above:
            continue
        for name, written in vars(base).items():
            value = written.__func__ if isinstance(written, (classmethod, staticmethod)) else written
            if name.startswith("_") or name in _HIDDEN or name in found:
                continue
            if (inspect.isfunction(value) or isinstance(value, property)) and inspect.getdoc(value):
                found[name] = value
    return list(found.items())


def _signature(value):
    """Return the parameters without their types; empty for a property."""
    if isinstance(value, property):
        return ""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return "(...)"
    shown = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("self", "cls")]
    # an object as a default has its address in its text
    return re.sub(r"<[^<>]* at 0x[^<>]*>", "...", str(inspect.Signature(shown)).replace("\n", " "))


def _first(value):
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _cell(value):
    return _first(value).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
