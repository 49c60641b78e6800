"""`penstock run --write`: the file is what a cluster takes, nothing is started, and what cannot be written is said."""

import pytest
from typer.testing import CliRunner

from penstock.cli.main import commands
from penstock.core.errors import UsageError
from penstock.graph.job_graph import decode_graph

JOB = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

for name in {names}:
    env = ps.Environment(parallelism=2, checkpoint_root="/nowhere")
    env.from_source(DatagenSource(rows=10, users=2), uid="orders").sink_to(FileSink("/nowhere/out"), uid="out")
    env.{run}(name)
"""


def written(folder, *options, names=("one",), run="execute", to="job.penstock"):
    path = folder / "job.py"
    path.write_text(JOB.format(names=names, run=run))
    arguments = ["run", str(path), "--write", str(folder / to), *options]
    return CliRunner().invoke(commands, arguments, catch_exceptions=False)


def test_the_file_holds_the_job_with_its_overrides(tmp_path):
    done = written(tmp_path, "--parallelism", "3")
    assert done.exit_code == 0, done.output
    assert "job.penstock" in done.output
    graph = decode_graph((tmp_path / "job.penstock").read_bytes())
    assert graph.name == "one"
    assert {vertex.parallelism for vertex in graph.vertices} == {3}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": ()}, "without calling env.execute"),
        ({"names": ("one", "two")}, "builds 2 jobs"),
        ({"run": "submit"}, "uses env.submit"),
        ({"to": "no/such/folder"}, "cannot write .*: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path, options, text):
    with pytest.raises(UsageError, match=text):
        written(tmp_path, **options)
