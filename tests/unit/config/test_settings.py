"""Settings: durations, overrides and what a wrong one says."""

import pytest

from penstock.config.settings import AutoscalerSettings, JobSettings, parse_duration_ms, with_overrides
from penstock.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("5s", 5_000), ("1m", 60_000), ("2h", 7_200_000), ("1.5s", 1_500), (2, 2_000), ("1d", 86_400_000)],
)
def test_durations(text: str | int, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["5", "5 parsecs", "", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration_ms(text)


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
    assert AutoscalerSettings(**{name: value}).fault.startswith(f"autoscaler.{name} is {value}, ")
    assert AutoscalerSettings().fault == ""
