"""Hints for Python errors about names of penstock and about fields of rows."""

import pytest

import penstock as ps
from penstock.core.errors import misuse_hint


class Order(ps.Schema):
    user: str
    amount: int

    def label(self):
        return self.usre


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda row: row.amuont, "did you mean 'amount'? there are: user, amount"),
        (lambda row: row.label(), "did you mean 'user'? there are: user, amount"),
        (lambda row: row.user.uppr(), ""),
    ],
)
def test_a_field_that_a_row_has_not(use, hint):
    with pytest.raises(AttributeError) as caught:
        use(Order(user="a", amount=1))
    assert misuse_hint(caught.value) == hint


def test_a_name_of_another_system_on_an_object_and_on_a_class():
    for use in (lambda: ps.Environment().enable_checkpointing(5), lambda: ps.Environment.enableCheckpointing):
        with pytest.raises(AttributeError) as caught:
            use()
        assert misuse_hint(caught.value) == "use ps.Environment(checkpoint_interval='5s')"
