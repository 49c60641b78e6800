"""Other engines: what a folder of them says, how they are run and metered, and that a wrong answer gives no figure."""

import json
import signal
import sys

import pytest
from tests.cluster import proc_tree
from tests.support.interrupts import interruptible
from tests.support.waiting import wait_until

from penstock.cli import main
from penstock.core.errors import UsageError
from penstock_lab.bench.command import _ended_by_a_signal
from penstock_lab.bench.measuring.peers import Contest, Peer, Trial, merged, peers_of, ratios, run_peers

RIGHT = {1000: "1:2:3:4", 100: "9:9:9:9", 10: "0:0:0:0"}
SAYS = (
    "import json, sys, time; t = time.time(); sum(range(3_000_000));"
    "print('noise'); print('BENCH ' + json.dumps({'checksum': sys.argv[1], 't_start': t, 't_end': time.time()}))"
)
LEAVES = (
    "import json, pathlib, sys;"
    "[pathlib.Path(sys.argv[1], name).write_text(json.dumps({'checksum': sums, 't_start': 5.0, 't_end': 6.0}))"
    " for name, sums in (('a.json', '1:1:1:1'), ('b.json', '0:1:2:3'))]"
)


def peer(name, program, *arguments, **more):
    program = program.replace("{", "{{").replace("}", "}}")
    return {
        "name": name,
        "rival": "them",
        "workloads": ["w1"],
        "command": [sys.executable, "-c", program, *arguments],
    } | more


@pytest.fixture
def folder(tmp_path):
    def write(*peers):
        (tmp_path / "peers.json").write_text(json.dumps({"peers": peers}), encoding="utf-8")
        return str(tmp_path)

    return write


def contest(folder, events=1000, **more):
    return Contest(folder=folder, workload="w1", events=events, right=RIGHT.__getitem__, **more)


def test_a_right_answer_has_figures(folder):
    found = run_peers(contest(folder(peer("one", SAYS, "1:2:3:4"))), ours=1e9)
    figures = found["peers"]["one"]
    assert figures.get("checked"), figures
    assert figures["events"] == 1000
    assert figures["wall_seconds"] > 0


def test_a_wrong_answer_and_a_failure_have_no_figures_and_the_others_have(folder):
    made = folder(
        peer("wrong", SAYS, "1:2:3:5"),
        peer("broken", "import sys; sys.exit('no memory\\n\\t... 16 more')"),
        peer("absent", "", command=["/no/such/program"]),
        peer("right", SAYS, "1:2:3:4"),
    )
    found = run_peers(contest(made), ours=1e9)["peers"]
    assert found["wrong"] == {"events": 1000, "checksum": "1:2:3:5", "wrong": True}
    assert found["broken"] == {"failed": "broken ended with 1: no memory"}
    assert "absent cannot be started" in found["absent"]["failed"]
    assert found["right"]["checked"]


def test_records_of_several_processes_are_added_up(folder):
    found = run_peers(contest(folder(peer("two", LEAVES, "{scratch}"))), ours=1.0)["peers"]["two"]
    assert (found["checked"], found["wall_seconds"]) == (True, 1.0)
    assert merged([{"t_start": 2.0, "t_end": 3.0}, {"t_start": 1.0, "t_end": 2.0}]) == {"t_start": 1.0, "t_end": 3.0}


def test_an_empty_answer_is_not_called_checked(folder):
    found = run_peers(contest(folder(peer("one", SAYS, "0:0:0:0")), events=10), ours=1.0)["peers"]["one"]
    assert not found["checked"]


def test_a_slow_peer_has_fewer_events_and_its_own_right_answer(folder):
    found = run_peers(contest(folder(peer("slow", SAYS, "9:9:9:9", most_events=100))), ours=1.0)["peers"]["slow"]
    assert (found["events"], found["checked"]) == (100, True)


def test_few_events_show_the_marginal_cost(folder):
    program = (
        "import json, sys; n = int(sys.argv[1]); sum(range(n * 20_000));"
        "print('BENCH ' + json.dumps({'checksum': '1:2:3:4' if n == 1000 else '9:9:9:9'}))"
    )
    found = run_peers(contest(folder(peer("one", program, "{events}", few_events=100))), ours=1e9, ours_marginal=2e9)
    figures = found["peers"]["one"]
    assert figures["few_events"] == 100
    rate = figures["marginal_events_per_cpu_second"]
    assert rate == pytest.approx(900 / (figures["cpu_seconds_total"] - figures["few_cpu_seconds_total"]), rel=0.2)
    assert found["ratios"] == {"them": {"marginal": {"best": "one", "ratio": round(2e9 / rate, 2)}}}
    assert ratios((Peer(name="one", rival="them", workloads=("w1",), command=()),), found["peers"], 1e9, None) == {}


def test_a_wrong_answer_may_be_tried_again(folder, tmp_path):
    program = (
        "import json, pathlib; path = pathlib.Path('tries'); n = len(path.read_text()) if path.exists() else 0;"
        "path.write_text('x' * (n + 1)); print('BENCH ' + json.dumps({'events_per_cpu_second': 5.0,"
        "'checksum': '1:2:3:4' if n == 1 else '1:1:1:1'}))"
    )
    found = run_peers(contest(folder(peer("racy", program, attempts=3))), ours=10.0)
    assert found["peers"]["racy"]["events_per_cpu_second"] == 5.0
    assert found["ratios"] == {"them": {"run": {"best": "racy", "ratio": 2.0}}}
    assert (tmp_path / "tries").read_text() == "xx"


def test_a_peer_with_a_broker_is_given_its_topics_and_its_answer_is_read_back(folder):
    made = folder(
        peer("kafka", "import sys; assert sys.argv[1:] == ['a', 'b'], sys.argv", "{topic}", "{out}", broker=True)
    )

    def prepare(events):
        return Trial(words={"topic": "a", "out": "b"}, answer=lambda: RIGHT[events])

    assert run_peers(contest(made, prepare=prepare), ours=1.0)["peers"]["kafka"]["checked"]
    assert "w1 has none" in run_peers(contest(made), ours=1.0)["peers"]["kafka"]["failed"]


def test_the_words_of_a_command_are_filled_in(folder):
    words = ("{workload}", "{events}", "{managed_bytes}", "{checkpoint_ms}")
    program = "import sys; sys.exit(' '.join(sys.argv[1:]))"
    made = folder(peer("one", program, *words), peer("other", program, "{unknown}"))
    found = run_peers(contest(made, managed_bytes=5, checkpoint_ms=7), ours=1.0)["peers"]
    assert found["one"]["failed"].endswith("w1 1000 5 7")
    assert "an unknown word: {unknown}" in found["other"]["failed"]


def test_a_peer_that_does_not_end_is_ended_with_its_children(folder):
    # the child holds the pipe: were it left, the wait for the peer's output would not end
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    made = folder(peer("endless", program, limit_seconds=3))
    assert run_peers(contest(made), ours=1.0)["peers"]["endless"] == {"failed": "endless did not end within 3 s"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_peer_is_ended_with_its_children(number, folder, tmp_path):
    """Its child tells its number; then the bench is asked to end."""
    told = tmp_path / "told"
    child = f"import os, signal, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = f"""
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {child!r}])
while not (os.path.exists({str(told)!r}) and open({str(told)!r}).read()):
    time.sleep(0.01)
os.kill(os.getppid(), {int(number)})
time.sleep(600)
"""
    made = folder(peer("interrupted", program))
    with interruptible(), pytest.raises((KeyboardInterrupt, SystemExit)), _ended_by_a_signal():
        run_peers(contest(made), ours=1.0)
    pid = int(told.read_text())
    # a killed process of another parent ends a moment later
    wait_until(lambda: not proc_tree.alive(pid), f"the end of process {pid}", step=0.05)


def test_the_best_of_a_rival_counts():
    peers = tuple(
        Peer(name=name, rival=rival, workloads=("w1",), command=())
        for name, rival in (("a", "flink"), ("b", "flink"), ("c", "other"))
    )
    found = {"a": {"events_per_cpu_second": 10}, "b": {"events_per_cpu_second": 20}, "c": {"wrong": True}}
    assert ratios(peers, found, 100.0, 100.0) == {"flink": {"run": {"best": "b", "ratio": 5.0}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "peers.json cannot be read"),
        ("{", "is not a list of peers"),
        ('{"peers": [{"name": "x"}]}', "is not a list of peers"),
        ('{"peers": [{"name": "x", "rival": "y", "workloads": ["w3"], "command": []}]}', "there is no peer for w1"),
    ],
)
def test_a_folder_that_is_none_is_one_error_before_anything_runs(content, message, tmp_path, monkeypatch, capsys):
    if content is not None:
        (tmp_path / "peers.json").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        peers_of(str(tmp_path), "w1")
    monkeypatch.setattr("penstock_lab.bench.jobs.windows.w1", lambda _: pytest.fail("the job ran"))
    monkeypatch.setattr(sys, "argv", ["penstock", "bench", "w1", "--peers", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main.app()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
