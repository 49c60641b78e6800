"""Arguments that went through a template, as what they are."""

import pytest

from penstock.core.errors import UsageError
from penstock_airflow import templated


@pytest.mark.parametrize("absent", [None, "", " ", "None", "null"])
def test_absent(absent):
    assert templated.text(absent) == ""
    assert templated.count("n", absent) is None
    assert templated.amount("n", absent) == 0
    assert templated.flag("n", absent) is False
    assert templated.mapping("n", absent) == {}
    assert templated.texts("n", absent) == []


def test_present():
    assert templated.text(" a ") == "a"
    assert templated.count("n", "3") == templated.count("n", 3) == 3
    assert templated.amount("n", "1.5") == 1.5
    assert templated.flag("n", "True") is templated.flag("n", True) is True
    assert templated.flag("n", "false") is False
    assert templated.mapping("n", '{"a": 1}') == templated.mapping("n", {"a": 1}) == {"a": 1}
    assert templated.texts("n", '["a"]') == templated.texts("n", ("a",)) == ["a"]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (templated.count, "0"),
        (templated.count, "-1"),
        (templated.count, "1.5"),
        (templated.amount, "-1"),
        (templated.amount, "inf"),
        (templated.amount, "many"),
        (templated.flag, "perhaps"),
        (templated.mapping, "[1]"),
        (templated.mapping, "{"),
        (templated.texts, "{}"),
    ],
)
def test_wrong(read, value):
    with pytest.raises(UsageError, match="parallel"):
        read("parallel", value)
