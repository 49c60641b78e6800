"""Users see names of the engine's states that say what they hold, and may use either name."""

import pytest

from penstock.core.state_names import shown_name, stored_name


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("__timers_event", "timers (event time)"),
        ("__timers_processing", "timers (processing time)"),
        ("panes", "windows"),
        ("profile", "profile"),
    ],
)
def test_both_names_mean_the_stored_state(stored, shown):
    assert shown_name(stored) == shown
    assert stored_name(stored, [stored]) == stored_name(shown, [stored]) == stored


def test_a_state_of_the_user_keeps_its_name():
    assert stored_name("windows", ["windows", "panes"]) == "windows"
    assert stored_name("windows", ["profile"]) == "windows"
