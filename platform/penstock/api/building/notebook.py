"""HTML for notebooks: the columns of a stream, and the graph of an environment. Used by `_repr_html_` of both."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def schema_html(title: str, schema: pa.Schema) -> str:
    """Return the columns of a schema as an HTML table."""
    rows = "".join(f"<tr><td>{html.escape(f.name)}</td><td>{html.escape(str(f.type))}</td></tr>" for f in schema)
    head = f"<thead><tr><th>{html.escape(title)}</th><th>type</th></tr></thead>"
    return f"<table>{head}<tbody>{rows}</tbody></table>"


def text_html(text: str) -> str:
    """Return text with its line breaks, for example that of `env.explain()`."""
    return f"<pre>{html.escape(text)}</pre>"
