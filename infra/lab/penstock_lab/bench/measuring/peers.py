"""Other engines on the same workload, in the same call: the folder of `--peers DIR`.

A set-up script (`tests/bench/peers/setup.py`) fills DIR and writes DIR/peers.json: for every peer its workloads and the
command that runs one. A peer prints a line `BENCH {json}`, or writes such records as files to its folder: `checksum`,
and `t_start` and `t_end` (seconds since the epoch of its first event and its last result) or another figure; the
records of several processes are added up. Its process tree is metered as the job's is. A wrong answer gives no figure.
Called by `measure`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import PenstockError, UsageError
from penstock_lab.bench.measuring.comparisons import marginal_figures
from penstock_lab.bench.measuring.reference import agrees
from penstock_lab.bench.measuring.tree_meter import TreeMeter, become_reaper

_SETUP_HINT = "tests/bench/peers/setup.py fills such a folder"
_DEFAULT_MANAGED = 1 << 30


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One other engine in one configuration."""

    name: str
    #: The engine it represents: of all peers of a rival the best counts.
    rival: str
    workloads: tuple[str, ...]
    #: Words in braces are replaced: folder, python, workload, events, scratch, managed_bytes, checkpoint_ms, and the
    #: workload's own.
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    #: Whether it reads the workload's input from a broker.
    broker: bool = False
    #: Most events of a run, because more would take too long.
    most_events: int | None = None
    #: Also run with this few; the difference is the marginal cost of an event, without start-up and compilation.
    few_events: int | None = None
    #: Runs after which a wrong answer is final.
    attempts: int = 1
    #: Whether it reports an answer; one that generates other data has none to compare.
    answers: bool = True
    limit_seconds: float = 1800


class _Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    peers: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The input of one run of a peer with a broker, and the place of its answer."""

    words: dict[str, str]
    #: Reads the answer back; None: the peer reports it.
    answer: Callable[[], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The task for all peers of a workload."""

    #: The folder of `--peers`; None: only the workload's own peers.
    folder: str | None
    workload: str
    events: int
    #: The right answer for a number of events.
    right: Callable[[int], str]
    #: Memory for state in all slots, if the job has less than the default.
    managed_bytes: int | None = None
    #: Milliseconds between the job's checkpoints, 0 for none.
    checkpoint_ms: int = 0
    #: Peers that need no set-up.
    own: tuple[Peer, ...] = ()
    #: For a peer that reads from a broker: creates its topics for a number of events.
    prepare: Callable[[int], Trial] | None = None

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Return all peers, in the order in which they run."""
        return self.own + (() if self.folder is None else peers_of(self.folder, self.workload))


@dataclass(kw_only=True)
class _Run:
    """One metered run of a peer."""

    events: int
    meter: TreeMeter
    #: CPU seconds of the process tree, including start-up.
    total: float
    record: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""


def peers_of(folder: str, workload: str) -> tuple[Peer, ...]:
    """Return the peers that a folder has for a workload.

    Raises:
        UsageError: it is no such folder, its list cannot be read, or it has no peer for this workload.
    """
    path = Path(folder) / "peers.json"
    try:
        peers = msgspec.json.decode(path.read_bytes(), type=_Manifest).peers
    except OSError as error:
        raise UsageError(f"--peers {folder}: {path.name} cannot be read: {error.strerror}", hint=_SETUP_HINT) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"--peers {folder}: {path.name} is not a list of peers: {error}", hint=_SETUP_HINT) from error
    found = tuple(peer for peer in peers if workload in peer.workloads)
    if not found:
        known = sorted({name for peer in peers for name in peer.workloads})
        raise UsageError(f"--peers {folder}: there is no peer for {workload}", hint=f"there are for {', '.join(known)}")
    return found


def run_peers(contest: Contest, ours: float, ours_marginal: float | None = None) -> dict[str, Any]:
    """Run all peers of a workload, one after another.

    Returns figures by peer. For each rival it also returns the ratio of `ours` (events per CPU second) to its best
    configuration: as measured, and for the marginal cost if both are known.
    """
    found: dict[str, dict[str, Any]] = {}
    peers = contest.peers
    for peer in peers:
        try:
            found[peer.name] = _measured(peer, contest)
        except PenstockError as error:  # the other peers' figures are still useful
            found[peer.name] = {"failed": str(error)}
    return {"peers": found, "ratios": ratios(peers, found, ours, ours_marginal)}


def ratios(
    peers: tuple[Peer, ...], found: dict[str, dict[str, Any]], ours: float, ours_marginal: float | None
) -> dict[str, dict[str, Any]]:
    """Return the best peer of each rival and the ratio to it: of the run, and marginal if both were measured."""
    compared: dict[str, dict[str, Any]] = {}
    for rival in dict.fromkeys(peer.rival for peer in peers):
        names = [peer.name for peer in peers if peer.rival == rival]
        for label, figure, mine in (
            ("run", "events_per_cpu_second", ours),
            ("marginal", "marginal_events_per_cpu_second", ours_marginal),
        ):
            rates = {name: rate for name in names if (rate := found[name].get(figure))}
            if rates and mine is not None:
                best = max(rates, key=rates.__getitem__)
                compared.setdefault(rival, {})[label] = {"best": best, "ratio": round(mine / rates[best], 2)}
    return compared


def _measured(peer: Peer, contest: Contest) -> dict[str, Any]:
    events = contest.events if peer.most_events is None else min(contest.events, peer.most_events)
    run = _tried(peer, contest, events)
    right = contest.right(run.events) if peer.answers else ""
    if peer.answers and not agrees(run.checksum, right):
        return {"events": events, "checksum": run.checksum, "wrong": True}
    figures = _figures(run) | {"checked": peer.answers and right.strip("*:") != "" and not right.startswith("0:")}
    if peer.few_events is not None and peer.few_events < events:
        few = _tried(peer, contest, peer.few_events)
        figures |= marginal_figures(events, run.total, few.events, (few.total,))
    return figures


def _tried(peer: Peer, contest: Contest, events: int) -> _Run:
    """Run a peer; run it again after a wrong answer if it has attempts left."""
    run = _run(peer, contest, events)
    for _ in range(peer.attempts - 1):
        if not peer.answers or agrees(run.checksum, contest.right(events)):
            break
        run = _run(peer, contest, events)
    return run


def _figures(run: _Run) -> dict[str, Any]:
    record, figures = run.record, {"events": run.events, "load": round(os.getloadavg()[0], 1)}
    if "events_per_cpu_second" in record:  # it meters itself
        return figures | {"events_per_cpu_second": record["events_per_cpu_second"]}
    if "t_start" in record:
        start, end = float(record["t_start"]), float(record["t_end"])
        cpu = run.meter.cpu_between(start, end)
        figures |= {"wall_seconds": round(end - start, 3), "cpu_seconds": round(cpu, 3)}
        figures["events_per_cpu_second"] = round(run.events / cpu) if cpu else 0
    return figures | {
        "cpu_seconds_total": round(run.total, 3),
        "peak_rss_mb": run.meter.peak_rss_bytes // 1_000_000,
    }


def _run(peer: Peer, contest: Contest, events: int) -> _Run:
    trial = Trial(words={})
    if peer.broker:
        if contest.prepare is None:
            raise PenstockError(f"{peer.name} reads from a broker, and {contest.workload} has none")
        trial = contest.prepare(events)
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as scratch:
        words = {
            "folder": scratch if contest.folder is None else str(Path(contest.folder).absolute()),
            "python": sys.executable,
            "workload": contest.workload,
            "events": str(events),
            "scratch": scratch,
            "managed_bytes": str(contest.managed_bytes or _DEFAULT_MANAGED),
            "checkpoint_ms": str(contest.checkpoint_ms),
            **trial.words,
        }
        text, meter = _metered(peer, words)
        lines = [line[6:] for line in text.splitlines() if line.startswith("BENCH ")]
        lines += [path.read_text(encoding="utf-8") for path in sorted(Path(scratch).glob("*.json"))]
    record = merged([json.loads(line) for line in lines])
    checksum = str(record.get("checksum", "")) if trial.answer is None else trial.answer()
    return _Run(events=events, meter=meter, total=meter.total, record=record, checksum=checksum)


def merged(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the records of a peer's processes as one: sums are added, with the first begin and the last end."""
    found: dict[str, Any] = {}
    for record in records:
        both = found | record
        for name, choose in (("t_start", min), ("t_end", max)):
            if name in found and name in record:
                both[name] = choose(found[name], record[name])
        if "checksum" in found and "checksum" in record:
            parts = zip(found["checksum"].split(":"), record["checksum"].split(":"), strict=True)
            both["checksum"] = ":".join(str(int(a) + int(b)) for a, b in parts)
        found = both
    return found


def _metered(peer: Peer, words: dict[str, str]) -> tuple[str, TreeMeter]:
    become_reaper()
    command = list(_filled(peer.command, words))
    environment = os.environ | dict(
        zip(peer.environment, _filled(tuple(peer.environment.values()), words), strict=True)
    )
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=words["folder"],
            env=environment,
        )
    except OSError as error:
        raise PenstockError(f"{peer.name} cannot be started: {error}", hint=_SETUP_HINT) from error
    meter = TreeMeter(process.pid)
    try:
        meter.start()
        text, _ = process.communicate(timeout=peer.limit_seconds)
    except subprocess.TimeoutExpired as error:
        meter.kill()
        process.communicate()
        raise PenstockError(f"{peer.name} did not end within {peer.limit_seconds:g} s") from error
    except BaseException:  # Ctrl-C or a signal: another engine's processes end with the wait for them
        meter.kill()
        process.communicate()
        raise
    finally:
        meter.stop()
    if process.returncode:
        # the last line outside of a stack trace
        said = next((line for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace()), "nothing")
        raise PenstockError(f"{peer.name} ended with {process.returncode}: {said}")
    return text, meter


def _filled(texts: tuple[str, ...], words: dict[str, str]) -> Iterator[str]:
    for text in texts:
        try:
            yield text.format_map(words)
        except (KeyError, ValueError, IndexError) as error:
            raise PenstockError(f"a peer's command contains an unknown word: {text}", hint=_SETUP_HINT) from error
