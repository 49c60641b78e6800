"""The JobManager's own log, as Flink's tools ask for it."""

import asyncio
import contextlib
import os

import pytest
from fastapi import APIRouter

from penstock.core.errors import NotFoundError
from penstock.rest.jobs import process_routes


@contextlib.contextmanager
def errors_to(path):
    """Let standard error go to a file."""
    kept = os.dup(2)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def asked(path, **parameters):
    router = APIRouter()
    process_routes.add_routes(router, None, None)
    (endpoint,) = [route.endpoint for route in router.routes if route.path == path]
    return asyncio.run(endpoint(**parameters))


@pytest.mark.parametrize("rotated", ["not", "renamed", "deleted"])
def test_the_log_is_found_after_a_rotation_too(tmp_path, rotated):
    log = tmp_path / "jobmanager.log"
    log.write_text("started\n")
    name = log.name
    with errors_to(log):
        if rotated == "renamed":
            name = log.rename(log.with_name("jobmanager.log.1")).name
        elif rotated == "deleted":
            log.unlink()
        (found,) = asked("/jobmanager/logs")["logs"]
        texts = asked("/jobmanager/logs/{name}", name=name), asked("/jobmanager/log")
        with pytest.raises(NotFoundError):
            asked("/jobmanager/logs/{name}", name="another")
    assert (found["name"], found["size"]) == (name, 8)
    assert [text.body for text in texts] == [b"started\n"] * 2
