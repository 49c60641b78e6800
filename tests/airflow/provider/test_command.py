"""A command on the worker: a task ends in its error, and its log has the other lines of the command."""

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from penstock.core.errors import PenstockError
from penstock_airflow.hooks.penstock import ClusterConnection
from penstock_airflow.operators.command import Command, CommandOperator

FAILED = """
echo 'warning: out has earlier output' >&2
echo 'a line that the job file prints'
echo "penstock: filter 'valid': ZeroDivisionError: division by zero at job.py:6 in <lambda>" >&2
echo 'In your code:' >&2
echo 'row 1 of a batch of 500: user_id=112' >&2
exit {code}
"""
DONE = """
echo 'warning: out has earlier output' >&2
echo '{"jobid": "a"}'
"""


@pytest.fixture
def place(tmp_path):
    """A connection whose `python` is a script with this text."""

    def made(text):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{text}")
        script.chmod(0o755)
        return ClusterConnection("http://h:1", "", 1.0, "", str(script), "")

    return made


def test_the_error_is_the_line_with_the_cause_and_not_the_last_one(place):
    command = Command(place(FAILED.format(code=1)), ["backfill", "job.py"])
    with pytest.raises(PenstockError, match="ZeroDivisionError"):
        command.run()
    assert command.told == [
        "a line that the job file prints",
        "warning: out has earlier output",
        "In your code:",
        "row 1 of a batch of 500: user_id=112",
    ]


@pytest.mark.parametrize("missing", ["penstock", "msgspec"])
def test_an_interpreter_without_penstock_is_named_with_the_remedy(place, missing):
    found = f"python: Error while finding module specification (ModuleNotFoundError: No module named '{missing}')"
    command = Command(place(f'echo "{found}" >&2\nexit 1\n'), ["run", "job.py"])
    with pytest.raises(PenstockError, match=f"/python cannot run penstock: it has no module '{missing}'") as failed:
        command.run()
    assert failed.value.hint == "install penstock in it, or name another in the connection's field `python`"
    assert command.refused


def test_a_module_that_the_job_file_lacks_is_no_fault_of_the_interpreter(place):
    said = "penstock: job.py:2: ModuleNotFoundError: No module named 'pandaz'"
    with pytest.raises(PenstockError, match=f"^{said}$"):
        Command(place(f'echo "{said}" >&2\nexit 2\n'), ["run", "job.py"]).run()


def test_warnings_of_a_command_that_succeeds(place):
    command = Command(place(DONE), ["run", "job.py"])
    assert command.run() == {"jobid": "a"}
    assert command.told == ["warning: out has earlier output"]


@pytest.mark.parametrize(
    ("code", "raised"), [(1, AirflowException), (2, AirflowFailException), (3, AirflowFailException)]
)
def test_the_task_fails_with_the_error_and_its_log_has_the_other_lines(code, raised, place, monkeypatch, capsys):
    class Operator(CommandOperator):
        def perform(self, context):
            return self.run_command(["backfill", "job.py"])

    operator = Operator(task_id="task")
    monkeypatch.setattr(Operator, "hook", type("Hook", (), {"place": place(FAILED.format(code=code))}))
    with pytest.raises(AirflowException, match="ZeroDivisionError") as failed:
        operator.execute({})
    assert type(failed.value) is raised, "only code 1 is tried again"
    assert "user_id=112" in capsys.readouterr().out
