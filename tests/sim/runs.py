"""One start of the job (a run) in the simulation, and the result of a whole simulated history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.workload import Phase

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.jobs.job_store import StartOptions


@dataclass
class Run:
    """A submitted job: it keeps its ids over fail-overs of its leader."""

    graph: JobGraph
    start: StartOptions
    job_id: str
    run_id: str
    phase: Phase
    #: When its user asks for its end.
    ask_end_ms: float
    state: str = ""
    #: As the record of the HA store has it.
    upgrade: UpgradeRecord | None = None
    #: Generation of the leader that wrote it last.
    recorded_by: int = 0
    #: Where savepoints of stops may lie.
    stop_uris: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    counts: Counter[str]
    steps: int
    virtual_ms: float
    fingerprint: int
    rows: int
