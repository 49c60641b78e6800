"""Every kind of operator has its class."""

import pytest

from penstock.core.errors import GraphError
from penstock.graph.operator_kinds import KINDS
from penstock.operators.registry import OPERATORS, create_operator


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_every_kind_has_its_class(kind):
    assert callable(create_operator(kind).process_batch)


def test_every_kind_has_properties():
    assert KINDS.keys() == OPERATORS.keys(), "add the kind to graph/operator_kinds.py"


def test_an_unknown_kind_is_refused():
    with pytest.raises(GraphError, match="unknown operator kind 'teleport'"):
        create_operator("teleport")
