"""Job files that are run one after the other in one process."""

import textwrap

from penstock.api.job_file import planned

JOB = """
import penstock as ps
from names_of_jobs import NAME
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(1)
env.from_source(DatagenSource(rows=1), uid="in").sink_to(FileSink("out"), uid="out")
env.execute(NAME)
"""


def test_another_version_has_its_own_modules_of_the_same_name(tmp_path):
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "names_of_jobs.py").write_text(f"NAME = {version!r}\n")
        (tmp_path / version / "job.py").write_text(textwrap.dedent(JOB))
    assert planned(tmp_path / "v1" / "job.py", {}, "").name == "v1"
    assert planned(tmp_path / "v2" / "job.py", {}, "").name == "v2"
    assert planned(tmp_path / "v1" / "job.py", {}, "").name == "v1"
