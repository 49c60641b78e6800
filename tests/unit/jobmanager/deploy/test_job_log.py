"""The texts of checkpoints in an event log."""

import pytest

from penstock.jobmanager.deploy.job_log import completed_text, failed_text


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("checkpoint:3", "checkpoint 3"),
        ("savepoint:17", "savepoint 17"),
        ("stop:17", "savepoint 17 of the stop"),
        ("drain:17", "savepoint 17 of the drain"),
    ],
)
def test_a_checkpoint_is_named_by_its_kind_and_id(tag, name):
    assert completed_text(tag) == f"{name} completed"
    assert failed_text(tag, "disk full") == f"{name} failed: disk full"
