"""Flink's `triggerId` and `formatType`, and `unaligned`, in a request's body."""

import pytest

from penstock.core.errors import UsageError
from penstock.rest.flink.request_fields import is_native, is_unaligned, trigger_id


def test_given_or_not():
    assert trigger_id({"triggerId": "0a" * 16}) == "0a" * 16
    assert trigger_id({}) == trigger_id({"triggerId": None}) == trigger_id({"triggerId": ""}) == ""


@pytest.mark.parametrize("bad", ["x", "0A" * 16, "0a" * 17, "../" + "0" * 29, 7])
def test_anything_else_is_refused(bad):
    with pytest.raises(UsageError, match="32 hex digits"):
        trigger_id({"triggerId": bad})


def test_a_savepoint_is_canonical_unless_asked():
    assert not is_native({})
    assert not is_native({"formatType": "CANONICAL"})
    assert is_native({"formatType": "NATIVE"})
    with pytest.raises(UsageError, match=r"formatType 'native' is unknown \(send CANONICAL or NATIVE\)"):
        is_native({"formatType": "native"})


def test_a_checkpoint_is_aligned_or_not_by_the_settings_unless_asked():
    assert is_unaligned({}) is None
    assert [is_unaligned({"unaligned": given}) for given in (None, True, False)] == [None, True, False]
    with pytest.raises(UsageError, match=r"unaligned 'no' is no boolean \(send true or false, or nothing\)"):
        is_unaligned({"unaligned": "no"})
