"""The backend of a test."""

import pytest


@pytest.fixture
def backend(request):
    """The backend that the mark `on` names."""
    with request.param.in_force():
        yield request.param
