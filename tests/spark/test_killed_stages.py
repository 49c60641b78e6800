"""Golden jobs on executors, one of which is killed when a stage starts, in every stage: the undisturbed result."""

import functools
import os
import subprocess
import sys

import pytest
from tests.spark.executors import MASTER, OnExecutors, executors
from tests.spark.golden import KINDS, Golden
from tests.spark.test_backfill import CUTS, keyed, positions

from penstock.snapshots.access.verify import verify

#: An executor's JVM starts again in every stage.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_backfill(tmp_path, monkeypatch, kind):
    golden = Golden(kind, tmp_path)
    accepted = ("--accept", "dedup") if kind == "dedup" else ()
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    undisturbed = [sys.executable, *golden.command(CUTS, *accepted, to="here")]
    subprocess.run(undisturbed, env={**os.environ, **golden.environment}, cwd=tmp_path, check=True, timeout=300)
    vertices = len(golden.graph(monkeypatch).vertices)
    command = golden.command(CUTS, *accepted, "--master", MASTER, to="there")
    with OnExecutors(tmp_path, *command, **golden.environment) as program:
        for stage in range(vertices):
            program.wait(functools.partial(program.has_executors_for, stage), f"the start of stage {stage}")
            program.kill(executors(program.process.pid)[:1])
        code, _, said = program.end()
    assert code == 0, said[-2000:]
    assert program.jobs() == vertices
    assert len(program.lost()) == vertices
    assert golden.staged(there) == golden.staged(here)
    assert positions(there) == positions(here)
    for uid, name in keyed(here):
        assert golden.state(uid, name, there) == golden.state(uid, name, here)
    report = verify(there)
    assert (report.damaged, report.unknown) == ([], [])
