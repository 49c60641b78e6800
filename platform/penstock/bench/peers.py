"""Other engines on the same workload, in the same call: what `--peers DIR` names.

DIR has been filled by a set-up script (`tests/bench/peers/setup.py`), which leaves DIR/peers.json: for every peer the
workloads it has and the command that runs one. A peer prints a line `BENCH {json}`, or leaves such records as files in
the folder it is given: `checksum`, and `t_start` and `t_end` (seconds since the epoch of its first event and its last
result) or a figure of its own; the records of several processes are added up. Its tree of processes is metered as the
job's is. A wrong answer gives no figure. Called by `measure`.
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

from penstock.bench.marginal import marginal_figures
from penstock.bench.reference import agrees
from penstock.bench.tree_meter import TreeMeter, become_reaper
from penstock.core.errors import PenstockError, UsageError

_SETUP_HINT = "tests/bench/peers/setup.py fills such a folder"
_DEFAULT_MANAGED = 1 << 30


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One other engine in one configuration."""

    name: str
    #: Whom it speaks for: of all peers of a rival the best counts.
    rival: str
    workloads: tuple[str, ...]
    #: Words in braces are filled in: folder, python, workload, events, scratch, managed_bytes,
    #: checkpoint_ms, and the workload's own.
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    #: It reads from a broker what the workload puts there.
    broker: bool = False
    #: It is run with no more events than these, because it would take too long.
    most_events: int | None = None
    #: It is run with so few too; the difference is the marginal cost of an event, without start-up and compilation.
    few_events: int | None = None
    #: Runs after which a wrong answer is final.
    attempts: int = 1
    #: Whether it says an answer; one that generates other data has none to compare.
    answers: bool = True
    limit_seconds: float = 1800


class _Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    peers: tuple[Peer, ...]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run of a peer with a broker is given, and where its answer lies."""

    words: dict[str, str]
    #: Reads the answer back; None: the peer says it.
    answer: Callable[[], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What all peers of a workload are asked for."""

    #: The folder of `--peers`; None: the workload's own peers alone.
    folder: str | None
    workload: str
    events: int
    #: The right answer for a number of events.
    right: Callable[[int], str]
    #: Memory for state in all slots, where the job has less than the default.
    managed_bytes: int | None = None
    #: Milliseconds between the job's checkpoints, 0 for none.
    checkpoint_ms: int = 0
    #: Peers that need no set-up.
    own: tuple[Peer, ...] = ()
    #: For a peer that reads from a broker: makes its topics for so many events.
    prepare: Callable[[int], Trial] | None = None

    @property
    def peers(self) -> tuple[Peer, ...]:
        """All of them, in the order in which they are run."""
        return self.own + (() if self.folder is None else peers_of(self.folder, self.workload))


@dataclass(kw_only=True)
class _Run:
    """One run of a peer, as metered."""

    events: int
    meter: TreeMeter
    #: CPU seconds of the whole tree, start-up included.
    total: float
    record: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""


def peers_of(folder: str, workload: str) -> tuple[Peer, ...]:
    """Return the peers that a folder has for a workload.

    Raises:
        UsageError: it is no such folder, its list cannot be read, or nothing in it is for this workload.
    """
    path = Path(folder) / "peers.json"
    try:
        peers = msgspec.json.decode(path.read_bytes(), type=_Manifest).peers
    except OSError as error:
        raise UsageError(f"--peers {folder}: {path.name} cannot be read: {error.strerror}", hint=_SETUP_HINT) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"--peers {folder}: {path.name} is no list of peers: {error}", hint=_SETUP_HINT) from error
    found = tuple(peer for peer in peers if workload in peer.workloads)
    if not found:
        known = sorted({name for peer in peers for name in peer.workloads})
        raise UsageError(f"--peers {folder}: there is no peer for {workload}", hint=f"there are for {', '.join(known)}")
    return found


def run_peers(contest: Contest, ours: float, ours_marginal: float | None = None) -> dict[str, Any]:
    """Run all peers of a workload, one after another.

    Returns figures by peer and, for each rival, how many times what its best configuration does `ours` (events per CPU
    second) is: as both were measured, and of the marginal cost where both sides' is known.
    """
    found: dict[str, dict[str, Any]] = {}
    peers = contest.peers
    for peer in peers:
        try:
            found[peer.name] = _measured(peer, contest)
        except PenstockError as error:  # the others' figures are worth having all the same
            found[peer.name] = {"failed": str(error)}
    return {"peers": found, "ratios": ratios(peers, found, ours, ours_marginal)}


def ratios(
    peers: tuple[Peer, ...], found: dict[str, dict[str, Any]], ours: float, ours_marginal: float | None
) -> dict[str, dict[str, Any]]:
    """Return by rival the best peer of it and how we compare: of the run, and marginal where both were measured."""
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
    """Run a peer, again when its answer is wrong and it may."""
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
    """Return the records of a peer's processes as one: sums are added, the first begins and the last ends."""
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
    except BaseException:  # a key or a signal: another engine's processes end with the wait for them
        meter.kill()
        process.communicate()
        raise
    finally:
        meter.stop()
    if process.returncode:
        # the last line that is no part of a stack
        said = next((line for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace()), "nothing")
        raise PenstockError(f"{peer.name} ended with {process.returncode}: {said}")
    return text, meter


def _filled(texts: tuple[str, ...], words: dict[str, str]) -> Iterator[str]:
    for text in texts:
        try:
            yield text.format_map(words)
        except (KeyError, ValueError, IndexError) as error:
            raise PenstockError(f"a peer's command has no such word: {text}", hint=_SETUP_HINT) from error
