"""Other engines on the same workload, in the same call: a bare loop, and Flink where a folder has it set up.

DIR of `--peers DIR` is a folder that the peers' own set-up script has filled: `bare_loop.py` or an earlier form of it
(two workers, compiled loops and Arrow exchange, no engine: an upper bound), `venvs/flink`, `build/classes`. What is not
there is left out. Every peer's answer is compared; one that is not equal gets no figure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.bench.reference import agrees
from penstock.bench.tree_meter import TreeMeter
from penstock.core.errors import PenstockError, UsageError

_LIMIT_SECONDS = 1200
_LOOPS = ("bare_loop.py", "ceiling_prototype.py")
_FLINK_JARS = "venvs/flink/lib/python3.11/site-packages/pyflink/lib"
_OPENS = ("--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED")


def run_peers(folder: str, workload: str, events: int, checksum: str) -> dict[str, Any]:
    """Run what the folder has for a workload; return its figures by peer.

    Raises:
        UsageError: no such folder, or nothing in it for this workload.
    """
    place = Path(folder).absolute()
    found: dict[str, Any] = {}
    loops = [place / name for name in _LOOPS if workload == "w1" and (place / name).is_file()]
    if loops:
        found["ceiling"] = _ceiling(loops[0], events, checksum)
    if (place / "build/classes/bench/FlinkBench.class").is_file() and (place / _FLINK_JARS).is_dir():
        found["flink"] = _flink(place, workload, events, checksum)
    if not found:
        msg = f"--peers {folder}: there is no peer for {workload}"
        raise UsageError(msg, hint="run the peers' set-up script in that folder first")
    return found


def _ceiling(program: Path, events: int, checksum: str) -> dict[str, Any]:
    """Run the bare loop; it measures itself from the first event to the last result, its kernels warm."""
    text, _ = _run([sys.executable, str(program), str(events)], program.parent)
    match = re.search(r"wall ([\d.]+) M/s\s+per CPU-s ([\d.]+) M\s+checksum ([\d:]+)", text)
    if match is None:
        raise PenstockError(f"the ceiling's output makes no sense: {text[-200:]}")
    if match[3] != checksum:
        return {"checksum": match[3], "wrong": True}
    return {"events_per_second": float(match[1]) * 1e6, "events_per_cpu_second": float(match[2]) * 1e6}


def _flink(place: Path, workload: str, events: int, checksum: str) -> dict[str, Any]:
    """Run the DataStream job (hash map state, no checkpoints; RocksDB and a checkpoint every 5 s for w2)."""
    backend, interval = ("rocksdb", "5000") if workload == "w2" else ("hashmap", "0")
    scratch = place / "data/tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    command = [
        "java", "-Xmx3g", *_OPENS, f"-Dlog4j.configurationFile={place}/build/log4j2.properties",
        "-cp", f"{place}/build/classes:{place / _FLINK_JARS}/*:{place}/jars/flink/*", "bench.FlinkBench",
        "ds", workload, str(events), backend, interval, "check", str(scratch),
    ]  # fmt: skip
    text, meter = _run(command, place)
    record: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("BENCH "):
            record |= json.loads(line[6:])
    if not agrees(str(record.get("checksum")), checksum):
        return {"checksum": record.get("checksum"), "wrong": True}
    start, end = float(record["t_start"]), float(record["t_end"])
    cpu = meter.cpu_between(start, end)
    return {
        "wall_seconds": round(end - start, 3),
        "cpu_seconds": round(cpu, 3),
        "events_per_cpu_second": round(events / cpu) if cpu else 0,
        "cpu_seconds_total": round(meter.total, 3),
        "peak_rss_mb": meter.peak_rss_bytes // 1_000_000,
    }


def _run(command: list[str], place: Path) -> tuple[str, TreeMeter]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place)
    meter = TreeMeter(process.pid)
    meter.start()
    try:
        text, _ = process.communicate(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise PenstockError(f"{command[0]} did not end within {_LIMIT_SECONDS} s") from error
    finally:
        meter.stop()
    if process.returncode:
        raise PenstockError(f"{command[0]} ended with {process.returncode}: {text.strip().rpartition(chr(10))[2]}")
    return text, meter
