"""Settings: durations, overrides and what a wrong one says."""

import pytest

from penstock.config.settings import (
    AutoscalerSettings,
    JobSettings,
    parse_duration_ms,
    parse_duration_us,
    with_overrides,
)
from penstock.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("5s", 5_000),
        ("1m", 60_000),
        ("2h", 7_200_000),
        ("1.5s", 1_500),
        (2, 2_000),
        ("1d", 86_400_000),
        (0.029, 29),
        (1.001, 1_001),
        ("0.6ms", 1),
        ("1 minute", 60_000),
        ("90 seconds", 90_000),
        ("2hours", 7_200_000),
        ("1 day", 86_400_000),
    ],
)
def test_durations(text: str | int, expected: int) -> None:
    assert parse_duration_ms(text) == expected


def test_durations_of_event_time() -> None:
    values = {"2.5ms": 2_500, 0.0025: 2_500, 3 * 0.003: 9_000, 1.001: 1_001_000, "1d": 86_400_000_000}
    assert {value: parse_duration_us(value) for value in values} == values


@pytest.mark.parametrize("text", ["5", "5 parsecs", "minute", "1 minute 5 s", "", "-1s", float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    with pytest.raises(UsageError, match="is not a duration") as refused:
        parse_duration_ms(text)
    assert "ms, s, m, h or d" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_interval", "5"),
        ("checkpoint-interval-ms", "soon"),
        ("restart.delay", "-1s"),
        ("managed_memory", "3"),
    ],
)
def test_an_error_names_the_setting_as_it_was_given(name: str, value: str) -> None:
    with pytest.raises(UsageError) as refused:
        with_overrides(JobSettings(), {name: value})
    assert refused.value.message.startswith(f"{name} {value!r} is not a ")


def test_overrides_reach_nested_settings_and_keep_the_rest() -> None:
    settings = with_overrides(
        JobSettings(parallelism=2), {"checkpoint-interval-ms": "2s", "restart.kind": "none", "parallelism": "4"}
    )
    assert (settings.checkpoint_interval_ms, settings.restart.kind, settings.parallelism) == (2_000, "none", 4)
    assert settings.key_groups == JobSettings().key_groups


def test_overrides_may_leave_the_unit_out_of_the_name() -> None:
    settings = with_overrides(JobSettings(), {"checkpoint_interval": "500ms", "managed-memory": "1GB"})
    assert (settings.checkpoint_interval_ms, settings.managed_memory_bytes) == (500, 1 << 30)


@pytest.mark.parametrize(
    "overrides",
    [
        {"paralelism": "2"},
        {"autoscaler.target_utilization": "nan"},
        {"parallelism": "two"},
        {"restart.kind": "sometimes"},
        {"checkpoint_interval": "5"},
    ],
)
def test_wrong_overrides_are_usage_errors(overrides: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        with_overrides(JobSettings(), overrides)


@pytest.mark.parametrize(
    ("name", "value", "message", "way"),
    [
        ("state_backend", "rocks", "setting state_backend='rocks' is not known", "one of hashmap, rocksdb, remote"),
        ("combine", "no", "setting combine='no' is not known", "one of exact, all, off"),
        (
            "restart.kind",
            "always",
            "setting restart.kind='always' is not known",
            "one of fixed-delay, exponential-delay, failure-rate, none",
        ),
        ("parallelism", "two", "setting parallelism='two' is not a whole number", "for example parallelism=1"),
        ("parallelism", "2.5", "setting parallelism='2.5' is not a whole number", "for example parallelism=1"),
        ("combine_ratio", "x", "setting combine_ratio='x' is not a number", "for example combine_ratio=0.1"),
        (
            "autoscaler.enabled",
            "maybe",
            "setting autoscaler.enabled='maybe' is neither true nor false",
            "for example autoscaler.enabled=false",
        ),
        (
            "restart",
            "none",
            "setting restart='none' is not known: restart is a group of settings",
            "one of restart.kind, restart.attempts, ",
        ),
        ("requirements", "numpy", "setting requirements='numpy' is not a list", "ps.Environment(requirements=[...])"),
        ("restart.atempts", "3", "unknown setting 'restart.atempts'", "did you mean 'restart.attempts'? "),
        ("parallelism.most", "3", "unknown setting 'parallelism.most'", "did you mean 'parallelism'?"),
    ],
)
def test_a_wrong_override_is_told_with_its_name_its_value_and_what_is_allowed(name, value, message, way):
    with pytest.raises(UsageError) as caught:
        with_overrides(JobSettings(), {name: value})
    assert caught.value.message == message
    assert caught.value.hint.startswith(way)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_utilization", 0.0),
        ("target_utilization", float("nan")),
        ("utilization_boundary", -0.1),
        ("catch_up_duration_ms", 0),
        ("metrics_window_ms", -1),
        ("restart_time_ms", 1 << 60),
        ("max_parallelism", 0),
        ("min_parallelism", 201),
    ],
)
def test_what_the_autoscaler_cannot_reckon_with_is_named(name: str, value: float) -> None:
    assert AutoscalerSettings(**{name: value}).fault.startswith(f"{name} is {value}, ")
    assert AutoscalerSettings().fault == ""
