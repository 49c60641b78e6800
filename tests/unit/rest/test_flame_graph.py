"""Flame graphs have Flink's shape, add up, and say who is told to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.jobmanager.observe.profiling import Profile, ProfileStatus
from penstock.rest.diagnose.flame_graph import KINDS, flame_graph, tree_of

STACKS = st.dictionaries(
    st.integers(0, 3),
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.just("user")), max_size=4).map(tuple),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=8,
    ).map(tuple),
    max_size=4,
)


def profile(subtasks):
    return Profile(at_ms=1700, subtasks=subtasks, cost_ms=5.0, wall_ms=1000.0)


def leaves(node, path=()):
    """Stack -> samples that ended there."""
    own = node["value"] - sum(child["value"] for child in node["children"])
    found = {path: own} if own else {}
    for child in node["children"]:
        found |= leaves(child, (*path, child["name"]))
    return found


@given(STACKS, st.sampled_from(KINDS), st.none() | st.integers(0, 3))
def test_every_sample_is_in_the_tree_once(subtasks, kind, subtask):
    tree = tree_of(profile(subtasks), kind, subtask)
    wanted = {}
    for index, stacks in subtasks.items():
        for stack, on, off in stacks:
            if subtask in (None, index):
                names = tuple(name for name, _ in stack)
                wanted[names] = wanted.get(names, 0) + {"full": on + off, "on_cpu": on, "off_cpu": off}[kind]
    assert leaves(tree) == {stack: count for stack, count in wanted.items() if count}


def test_widest_first_and_whose_it_is():
    engine, user = ("step", "engine"), ("rate", "user")
    found = ProfileStatus(profile({0: (((engine,), 1, 2), ((engine, user), 7, 0))}), sampling=False)
    answer = flame_graph(found, "FULL", None)
    assert answer["endTimestamp"] == 1700
    assert answer["cost"] == 0.005
    assert answer["data"] == {
        "name": "root", "value": 10, "whose": "engine",
        "children": [
            {"name": "step", "value": 10, "whose": "engine",
             "children": [{"name": "rate", "value": 7, "whose": "user", "children": []}]},
        ],
    }  # fmt: skip
    assert flame_graph(found, "off_cpu", None)["data"]["value"] == 2


def test_what_flink_says_of_none():
    assert flame_graph(None, "full", None) == {"endTimestamp": -1}
    assert flame_graph(ProfileStatus(None, sampling=True), "full", None) == {"endTimestamp": -3}
    assert flame_graph(ProfileStatus(None, sampling=False, error="lost"), "full", None)["error"] == "lost"
    with pytest.raises(UsageError, match="not a kind"):
        flame_graph(None, "half", None)
