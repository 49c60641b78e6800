"""Texts in state take little memory that is not counted."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.operators.test_text_memory import AGGREGATES, KEYS, LIMIT, SIZE, WINDOWS, Job, text


@pytest.mark.parametrize("kind", WINDOWS)
def test_little_memory_is_taken_that_is_not_counted(tmp_path, kind):
    """What is moved, written and encoded comes on top: some megabytes, here."""
    for name, keys in (("before", KEYS), ("then", 6 * KEYS)):  # the first time code is loaded
        job = Job(tmp_path / name, kind)
        tracemalloc.start()
        for first in range(0, keys, SIZE):
            job.give(np.arange(first, first + SIZE), 0, SimpleNamespace(batch=lambda _: None))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        job.store.close()
    assert job.budget.peak_bytes > LIMIT // 2, "it was not full"
    assert most < 6 * LIMIT < 6 * KEYS * len(AGGREGATES) * len(text(0, 0))
