"""Requirements are installed once, or refused in one line."""

import sys
import threading

import pytest

from penstock.taskmanager.environments import RequirementsError, environment_key, install_requirements

FAKE = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
names = sys.argv[sys.argv.index("--") + 1:]
if "broken" in names:
    print("Resolving...", file=sys.stderr)
    print("ERROR: no such package: broken", file=sys.stderr)
    sys.exit(1)
target.mkdir()
for name in names:
    (target / (name + ".py")).write_text("")
with open(pathlib.Path(__file__).with_name("runs"), "a") as runs:
    runs.write("x")
"""


@pytest.fixture
def installer(tmp_path):
    script = tmp_path / "installer.py"
    script.write_text(FAKE)
    return [sys.executable, str(script)]


def test_equal_requirements_are_installed_once(tmp_path, installer):
    root = tmp_path / "environments"
    orders = (["a", "b"], ["b", "a"], ["a", "b"])
    threads = [threading.Thread(target=install_requirements, args=(names, root, installer)) for names in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = install_requirements(["a", "b"], root, installer)
    assert sorted(path.name for path in folder.iterdir()) == ["a.py", "b.py"]
    assert (tmp_path / "runs").read_text() == "x"


def test_a_failure_is_one_line_with_the_installers_reason_and_leaves_nothing(tmp_path, installer):
    root = tmp_path / "environments"
    with pytest.raises(RequirementsError, match=r"ERROR: no such package: broken") as caught:
        install_requirements(["broken"], root, installer)
    assert "\n" not in str(caught.value)
    assert not [path for path in root.iterdir() if path.is_dir()]


def test_an_installer_that_is_missing_is_a_clear_error(tmp_path):
    with pytest.raises(RequirementsError, match="could not be started"):
        install_requirements(["a"], tmp_path, ["/nonexistent/installer"])


def test_the_key_tells_requirements_apart():
    assert environment_key(["a", "b"]) == environment_key(["b", "a", "a"])
    assert environment_key(["a"]) != environment_key(["a==1"])


def test_a_requirement_is_never_an_option(tmp_path, installer):
    folder = install_requirements(["--index-url"], tmp_path / "e", installer)
    assert (folder / "--index-url.py").exists()
