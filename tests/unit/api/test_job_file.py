"""Job files that are run one after the other in one process."""

import re
import sys
import textwrap
from pathlib import Path

import pytest

from penstock.api.job_file import execute_file, planned, require_job_file
from penstock.core.errors import UsageError

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


@pytest.mark.parametrize(("told", "shown"), [("job.py:3: no topic", "job.py:3: no topic"), ("no", "job.py:1: no")])
def test_an_error_names_the_line_of_the_operator_else_that_of_the_call(tmp_path, told, shown):
    (tmp_path / "job.py").write_text(f"from penstock.core.errors import UsageError; raise UsageError({told!r})\n")
    with pytest.raises(UsageError) as raised:
        execute_file(tmp_path / "job.py")
    assert str(raised.value) == shown


def test_code_of_a_relative_job_file_has_an_absolute_path_for_workers_in_another_folder(tmp_path, monkeypatch):
    (tmp_path / "v2").mkdir()
    line = "__import__('pathlib').Path('found').write_text((lambda: 0).__code__.co_filename)\n"
    (tmp_path / "v2" / "job.py").write_text(line)
    monkeypatch.chdir(tmp_path)
    execute_file(Path("v2/job.py"))
    assert Path("found").read_text() == str(tmp_path / "v2" / "job.py")


def test_planning_leaves_the_import_path_and_pythons_own_modules_alone(tmp_path):
    (tmp_path / "names_of_jobs.py").write_text("NAME = 'orders'\n")
    (tmp_path / "numbers.py").write_text("raise RuntimeError('imported in place of the module of Python')\n")
    (tmp_path / "job.py").write_text(JOB)
    import numbers

    before = list(sys.path)
    assert planned(tmp_path / "job.py", {}, "").name == "orders"
    assert sys.path == before
    assert sys.modules["numbers"] is numbers


def test_a_job_file_with_the_name_of_a_module_of_python_is_refused(tmp_path):
    (tmp_path / "numbers.py").write_text(JOB)
    with pytest.raises(UsageError, match=r"in place of Python's own module 'numbers'.*rename the job file"):
        planned(tmp_path / "numbers.py", {}, "")


def test_a_file_with_data_is_no_job(tmp_path):
    (tmp_path / "orders.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(UsageError, match=r"orders.jsonl is no Python file \(pass the job file"):
        planned(tmp_path / "orders.jsonl", {}, "")


def test_a_relative_path_is_told_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"no job file a\.py \(.*; a\.py is relative to {re.escape(str(tmp_path))}\)"):
        require_job_file(Path("a.py"))
    with pytest.raises(UsageError, match=r"\(pass the path of a Python file\)"):
        require_job_file(tmp_path / "a.py")
