"""w5 in other engines, measured as `penstock bench` measures: `run.py --venvs DIR --events N [PEER ...]`.

DIR holds a venv for each engine: `flink` (apache-flink, a JVM on the path), `bytewax`. Prints one JSON object; a peer
whose answer is wrong gets no figure. Run it right before or behind `penstock bench w5`, on an idle machine.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from penstock.bench import reference
from penstock.bench.tree_meter import TreeMeter, become_reaper

HERE = Path(__file__).resolve().parent
PEERS = {
    "pyflink": ("flink", [str(HERE / "w5_pyflink.py"), "{events}", "process", "{folder}"]),
    "pyflink-thread": ("flink", [str(HERE / "w5_pyflink.py"), "{events}", "thread", "{folder}"]),
    "bytewax": ("bytewax", ["-m", "bytewax.run", "-w", "1", "w5_bytewax:flow({events}, '{folder}')"]),
}
LIMIT_SECONDS = 1800


def measured(peer, venvs, events):
    """Run one peer; return its figures."""
    venv, arguments = PEERS[peer]
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as folder:
        command = [str(venvs / venv / "bin/python"), *(a.format(events=events, folder=folder) for a in arguments)]
        # the interpreter inside PyFlink's thread mode does not know its venv
        paths = [HERE, *(venvs / venv).glob("lib/python3.*/site-packages")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "_python_worker_execution_mode": "process",
        }
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        meter = TreeMeter(process.pid)
        meter.start()
        try:
            text, _ = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            meter.stop()
        if process.returncode:
            return {"failed": text.decode(errors="replace")[-300:]}
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json")]
    checksum = ":".join(str(sum(part["sums"][i] for part in parts)) for i in range(4))
    if checksum != reference.windows(events, 10_000, 10_000):
        return {"checksum": checksum, "wrong": True}
    begun, ended = min(part["begun"] for part in parts if part["begun"]), max(part["ended"] for part in parts)
    cpu = meter.cpu_between(begun, ended)
    return {
        "wall_seconds": round(ended - begun, 3),
        "cpu_seconds": round(cpu, 3),
        "events_per_cpu_second": round(events / cpu),
        "cpu_seconds_total": round(meter.total, 3),
        "peak_rss_mb": meter.peak_rss_bytes // 1_000_000,
        "checksum": checksum,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("peers", nargs="*", default=list(PEERS))
    chosen = parser.parse_args()
    become_reaper()
    found = {peer: measured(peer, chosen.venvs.absolute(), chosen.events) for peer in chosen.peers}
    print(json.dumps({"workload": "w5", "events": chosen.events, "load": round(os.getloadavg()[0], 1), "peers": found}))


if __name__ == "__main__":
    main()
