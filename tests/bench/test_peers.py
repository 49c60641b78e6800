"""The set-up of other engines: what it lists can be run by `penstock bench --peers`, and bad input is one error.

The engines themselves are not started here: they are large downloads.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock_lab.bench.measuring.peers import Peer, peers_of
from penstock_lab.bench.registry import WORKLOADS

pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent / "peers"
WORDS = {"folder", "python", "workload", "events", "scratch", "managed_bytes", "checkpoint_ms"}


def setup(*arguments):
    command = [sys.executable, str(HERE / "setup.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def catalog():
    script = (
        "import json, sys; from pathlib import Path; from catalog import peers;"
        "names = {'flink', 'nexmark', 'bytewax', 'quix', 'ceiling'};"
        "print(json.dumps(peers(names, Path('/jars/pyflink/lib'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=600, check=True
    )
    return [msgspec.convert(entry, Peer) for entry in json.loads(done.stdout)]


def test_every_entry_is_a_peer_of_workloads_there_are(catalog):
    for peer in catalog:
        assert set(peer.workloads) <= WORKLOADS.keys(), peer.name
    for workload in WORKLOADS:
        names = [peer.name for peer in catalog if workload in peer.workloads]
        assert len(names) == len(set(names)), f"figures are kept by name: {workload}"


def test_commands_use_words_that_are_filled_in_and_programs_that_are_there(catalog):
    for peer in catalog:
        text = " ".join((*peer.command, *peer.environment.values()))
        known = WORDS | ({"bootstrap", "topic", "out"} if peer.broker else set())
        assert set(re.findall(r"\{(\w+)\}", text)) <= known, peer.name
        for program in re.findall(r"\{folder\}/programs/(\w+\.py)", text):
            assert (HERE / program).is_file()
        for job in re.findall(r" peers\.(\w+)", text):
            assert (HERE / "java/peers" / f"{job}.java").is_file()


def test_rivals_of_a_goal_have_both_of_flinks_apis(catalog):
    for workload, rival in (("w1", "flink-heap"), ("w1s", "flink-rocksdb"), ("w2x", "flink-rocksdb")):
        both = {
            peer.name.removesuffix("-rocksdb") for peer in catalog if peer.rival == rival and workload in peer.workloads
        }
        assert both == {"flink-stream", "flink-sql"}


def test_setting_up_nothing_leaves_a_folder_with_the_bare_loop(tmp_path):
    done = setup(tmp_path, "--only", "")
    assert done.returncode == 0, done.stderr
    assert [peer.name for peer in peers_of(str(tmp_path), "w1")] == ["bare-loop"]
    assert (tmp_path / "programs/bare_loop.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "storm"), "there is no peer storm"),
        (("--only", "ceiling"), "named with --ceiling FILE"),
        (("--only", "nexmark", "--nexmark", "/no/such/repository"), "git clone"),
    ],
)
def test_what_cannot_be_set_up_is_one_error(arguments, message, tmp_path):
    done = setup(tmp_path, *arguments)
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "peers.json").exists()
