"""`penstock jobmanager --hand-over` asks the leader of the HA root."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease, take_lead
from penstock.checkpoint.stores import open_store
from penstock.cli import main


class Leader(BaseHTTPRequestHandler):
    """Records requests, and accepts each."""

    def do_POST(self):
        self.server.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


@pytest.fixture
def leader():
    with HTTPServer(("127.0.0.1", 0), Leader) as http:
        http.seen = []
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.fixture
def root(leader, tmp_path, monkeypatch):
    """The HA root of the leader."""
    monkeypatch.chdir(tmp_path)
    holder = LeaseHolder(id="root", host="h", machine="", pid=1)
    rest = f"http://127.0.0.1:{leader.server_port}"
    take_lead(
        open_store("state/ha"),
        LeaderLease(generation=0, jobmanager_id="a", holder=holder, rest=rest, rpc="h:1"), 0,
    )  # fmt: skip
    return "state/ha"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["penstock", "jobmanager", "--hand-over", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.app()
    return ended.value.code


def test_the_leader_of_the_ha_root_hands_over(leader, root, monkeypatch, capsys):
    assert run(monkeypatch, "--ha-root", root) == 0
    assert leader.seen == [("/v1/penstock/leader/hand-over", None)]
    assert capsys.readouterr().out == "the leader hands over to a standby\n"


def test_the_leader_gets_the_token_of_the_security_folder(leader, root, tmp_path, monkeypatch):
    """The option comes before the variable."""
    for name in ("given", "environment"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "admin.token").write_text(f"{name}\n")
    monkeypatch.setenv("PENSTOCK__CLUSTER__SECURITY", str(tmp_path / "environment"))
    assert run(monkeypatch, "--ha-root", root) == 0
    assert run(monkeypatch, "--ha-root", root, "--security", "given") == 0
    assert [token for _, token in leader.seen] == ["Bearer environment", "Bearer given"]


@pytest.mark.parametrize(("option", "folder"), [("~/state/ha", "state/ha"), ("%61", "%61")])
def test_the_folder_is_that_of_the_leader(leader, root, tmp_path, monkeypatch, option, folder):
    """`~` is the home folder, and a percent sign stands for itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / root).rename(tmp_path / folder)
    assert run(monkeypatch, "--ha-root", option) == 0
    assert len(leader.seen) == 1


def test_without_a_leader_the_folder_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--ha-root", "state/ha") != 0
    assert f"no JobManager leads file://{tmp_path}/state/ha (start one" in capsys.readouterr().err
