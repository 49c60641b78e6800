"""The bootstrap prepares what the arguments need, installs once, and fails in one line."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The script as a module that works in an empty checkout and only notes what it would run."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "infra" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT, module.VENV = tmp_path, tmp_path / ".venv"
    module.PYTHON, module.STAMP = tmp_path / ".venv/bin/python", tmp_path / ".venv/stamp"
    module.LOCK = tmp_path / "requirements.lock"
    module.LOCK.write_text("a==1")
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    module.ran = []
    module.fails = set()

    def run(title, argv, environment=None):
        module.ran.append(argv)
        if argv[0] in module.fails:
            raise module.BootstrapError(f"{title} failed")

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "_uv", lambda python: "uv")
    monkeypatch.setattr(module, "_usable", lambda python: True)
    return module


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], True),
        (["-x"], True),
        (["tests"], True),
        (["tests/cluster"], True),
        (["tests/unit", "tests/cluster/test_servers.py"], True),
        (["tests/unit"], False),
        (["-x", "tests/unit/core/test_clock.py::test_a", "tests/property"], False),
        (["/somewhere/penstock/tests/tidy"], False),
    ],
)
def test_servers_are_prepared_when_a_path_may_need_them(bootstrap, arguments, wanted):
    assert bootstrap._wants_servers(arguments) is wanted


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], True),
        (["tests"], True),
        (["tests/ui"], True),
        (["tests/unit", "tests/ui/test_a.py"], True),
        (["tests/flink_tools"], True),
        (["tests/unit"], False),
    ],
)
def test_a_browser_is_prepared_when_a_path_may_need_it(bootstrap, arguments, wanted):
    assert bootstrap._wants_browser(arguments) is wanted
    assert not bootstrap._wants_servers(["tests/ui"])


@pytest.mark.parametrize(
    ("there", "user", "ran"),
    [
        ({"google-chrome", "apt-get"}, 0, []),
        ({"apt-get"}, 0, ["apt-get", "apt-get"]),
        ({"apt-get"}, 1000, [".venv/bin/python"]),
        (set(), 0, [".venv/bin/python"]),
    ],
)
def test_a_browser_is_fetched_once_by_whom_it_can_be(bootstrap, monkeypatch, there, user, ran):
    monkeypatch.delenv("PENSTOCK_CHROMIUM", raising=False)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: user)
    bootstrap.prepare_browser()
    assert [argv[0].removeprefix(f"{bootstrap.ROOT}/") for argv in bootstrap.ran] == ran
    monkeypatch.setenv("PENSTOCK_CHROMIUM", "/opt/chromium")
    bootstrap.prepare_browser()
    assert len(bootstrap.ran) == len(ran)


def test_without_a_browser_the_other_tests_still_run(bootstrap, monkeypatch, capsys):
    monkeypatch.delenv("PENSTOCK_CHROMIUM", raising=False)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    bootstrap.fails.add(str(bootstrap.PYTHON))
    bootstrap.prepare_browser()
    assert "install chromium" in capsys.readouterr().err


def test_install_runs_once_per_lock(bootstrap):
    bootstrap.PYTHON.touch()
    bootstrap.install()
    assert any("--require-hashes" in argv for argv in bootstrap.ran)
    bootstrap.ran.clear()
    bootstrap.install()
    assert bootstrap.ran == []
    bootstrap.LOCK.write_text("a==2")
    bootstrap.install()
    assert bootstrap.ran


def test_pip_takes_over_where_uv_fails(bootstrap):
    bootstrap.fails = {"uv"}
    bootstrap.install()
    last = [argv[1:4] for argv in bootstrap.ran if "install" in argv][-2:]
    assert last == [["-m", "pip", "install"]] * 2
    assert bootstrap.STAMP.exists()


def test_a_failed_install_is_not_taken_for_done(bootstrap):
    bootstrap.fails = {"uv", str(bootstrap.PYTHON)}
    with pytest.raises(bootstrap.BootstrapError):
        bootstrap.install()
    assert not bootstrap.STAMP.exists()


def test_unknown_command(bootstrap, capsys):
    assert bootstrap.main(["fly"]) == 2
    assert "usage:" in capsys.readouterr().err


def test_an_unsupported_python_is_named(bootstrap, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "VERSIONS", ((2, 7),))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    assert bootstrap.main(["setup"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: Python 3.11, 3.12 or 3.13 is needed, this is ")


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", ""),
        ("fetching\n3 of the packages\n", ""),
        ("0 of 19 modules\nwarning: slow\n7 of 19 modules\n", "7 of 19 modules, "),
    ],
)
def test_the_progress_of_a_step_is_what_it_printed_last(bootstrap, tmp_path, printed, told):
    (tmp_path / "log").write_text(printed)
    assert bootstrap.progress_of(tmp_path / "log") == told


def test_run_shows_the_end_of_a_failed_step(bootstrap, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("fresh", ROOT / "infra" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path
    with pytest.raises(module.BootstrapError, match=r"a step failed: no route to host \(is the network reachable"):
        module.run("a step", [sys.executable, "-c", "print('no route to host'); raise SystemExit(3)"])


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], True),
        (["tests"], True),
        (["tests/airflow"], True),
        (["tests/unit"], False),
        (["tests/unit/airflow"], False),
    ],
)
def test_airflow_is_installed_when_a_path_may_need_it(bootstrap, arguments, wanted):
    assert bootstrap._wants_airflow(arguments) is wanted


SIM = [f"tests/sim/test_{name}.py" for name in ("seeds", "directed")]
FAST = ["tests/unit", "tests/property", *SIM, "tests/tidy"]


@pytest.mark.parametrize(
    ("given", "depth", "levels", "workers"),
    [
        ([], "gate", [], "-n4"),
        (["-x"], "gate", [], "-n4"),
        (["fast"], "fast", FAST, "-n2"),
        (["nightly", "-x"], "nightly", [], "-n4"),
        (["fast", "tests/sim"], "fast", ["tests/sim"], None),
        (["tests/unit/core"], "gate", ["tests/unit/core"], None),
    ],
)
def test_depth_chooses_levels_and_processes(bootstrap, monkeypatch, given, depth, levels, workers):
    monkeypatch.setenv("PENSTOCK_TEST_DEPTH", "")
    monkeypatch.setenv("PENSTOCK_TEST_SEED", "")
    monkeypatch.setattr(bootstrap.os, "cpu_count", lambda: 2)
    answer = SimpleNamespace(stdout="0000002a" + "0" * 32)
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda *arguments, **options: answer)
    found = bootstrap.pytest_arguments(given)
    assert bootstrap.os.environ["PENSTOCK_TEST_DEPTH"] == depth
    assert [argument for argument in found if not argument.startswith("-")] == levels
    assert [argument for argument in found if argument.startswith("-n")] == [workers][: workers is not None]
    assert ("--hypothesis-seed=42" in found) is (depth == "nightly")
    assert bootstrap.os.environ["PENSTOCK_TEST_SEED"] == ("42" if depth == "nightly" else "")
