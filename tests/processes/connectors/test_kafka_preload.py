"""What a worker template imports for the Kafka connector and for a store, and what it must not start."""

import os
import subprocess
import sys

import pytest

from penstock.checkpoint.stores import client_modules
from penstock.taskmanager.template_client import THREAD_LIMITS
from penstock_connectors.kafka import sink, source

SCRIPT = """
import importlib, sys
from penstock.taskmanager.process_control import thread_names
from penstock.taskmanager.template import SAFE_THREADS
before = set(thread_names())
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(set(thread_names()) - before - SAFE_THREADS))
"""


PRELOADS = [source.PRELOAD, *sink.PRELOAD.values(), client_modules("s3://state/jobs")]


@pytest.mark.parametrize("modules", PRELOADS, ids=lambda m: m[0].rpartition(".")[2])
def test_what_a_template_preloads_can_be_imported_and_starts_no_thread(modules):
    command, environment = [sys.executable, "-c", SCRIPT, *modules], {**os.environ, **THREAD_LIMITS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
