"""What a failing function does to an embedded run: it ends at once, with the error and the user's line."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTION = """
from collections.abc import Iterator

import penstock as ps


class Paid(ps.Schema):
    user: str
    amount: int


class Total(ps.Schema):
    user: str
    total: int


class Totals(ps.KeyedProcessFunction):
    total: ps.ValueState[int] = ps.value_state()

    def process(self, row: Paid, ctx) -> Iterator[Total]:
        self.total.update((self.total.value() or 0) + row.amount)
        yield Total(user=row.user, total=self.total.value())
"""
TEST = """
from pathlib import Path

import penstock as ps
from fraud import Paid, Totals
from penstock_connectors.files import FileSource

{more}

def test_totals(tmp_path):
    (tmp_path / "paid.jsonl").write_text('{{"user": "a", "amount": 1}}\\n{{"user": "a", "amount": 2}}\\n')
    rows = (
        ps.Environment(1)
        .from_source(FileSource(str(tmp_path / "paid.jsonl"), schema=Paid), uid="paid")
        .key_by("user")
        .process(Totals())
        .uid("totals")
        .execute_and_collect()
    )
    assert sorted(rows["total"]) == [1, 3]
"""
#: The module cannot be found by any other process.
HIDDEN = 'import sys\n\nsys.path[:] = [place for place in sys.path if not (Path(place) / "fraud.py").exists()]\n'
JOB = """
import penstock as ps
from penstock_connectors.files import FileSink, FileSource


class Paid(ps.Schema):
    user: str
    amount: int


env = ps.Environment(1, checkpoint_root={root!r})
(env.from_source(FileSource({paid!r}, schema=Paid), uid="paid")
    .map({function}, returns=Paid)
    .sink_to(FileSink({out!r}), uid="out"))
env.execute("raises")
"""


def said(folder, *command):
    """Return the exit code and all that a command has printed."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def a_test(tmp_path):
    """Run a user's own test of a process function with pytest; `more` stands after its imports."""

    def run(more=""):
        (tmp_path / "fraud.py").write_text(FUNCTION)
        (tmp_path / "test_fraud.py").write_text(TEST.format(more=more))
        return said(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_fraud.py")

    return run


def test_a_test_of_a_process_function_whose_module_lies_beside_it_passes(a_test):
    code, text = a_test()
    assert code == 0, text


def test_a_test_whose_workers_cannot_import_the_function_fails_with_the_import_error(a_test):
    code, text = a_test(HIDDEN)
    assert code == 1, text
    assert "FunctionLoadError: process 'totals': the function cannot be loaded: ModuleNotFoundError" in text
    assert "No module named 'fraud' (put the module beside the job file" in text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("lambda row: row._asdict()", "AttributeError: 'Paid' object has no attribute '_asdict'"),
        ("lambda row: Paid(user=row.user, amount='abc')", "Paid: amount: Input should be a valid integer"),
    ],
)
def test_a_function_that_raises_ends_the_run_with_its_line(tmp_path, function, words):
    (tmp_path / "paid.jsonl").write_text('{"user": "a", "amount": 1}\n')
    root, paid, out = (str(tmp_path / name) for name in ("root", "paid.jsonl", "out"))
    (tmp_path / "job.py").write_text(JOB.format(root=root, paid=paid, out=out, function=function))
    code, text = said(tmp_path, "penstock.cli.main", "run", "job.py")
    assert code == 1, text
    assert words in " ".join(text.split())
    assert "job.py:13" in text
