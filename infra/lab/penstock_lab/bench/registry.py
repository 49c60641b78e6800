"""The workloads by name. A workload is a function of `BenchOptions` that returns its figures, imported when asked for.

To add one: a line here, and a function that most often ends with `measure.measure_job`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError
from penstock_lab.bench.measuring.peers import peers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock_lab.bench.options import BenchOptions

_NEXMARK = {
    "q0": "all bids",
    "q1": "prices in another currency",
    "q2": "bids for some auctions",
    "q5": "the auctions with the most bids, sliding windows",
    "q7": "the highest bids, tumbling windows",
    "q11": "bids of each bidder's sessions",
    "q12": "bids of each bidder, windows of processing time",
    "q17": "running figures of each auction's day",
    "q18": "the last bid of each bidder for each auction",
}
#: Name: (`module:function`, description).
WORKLOADS: dict[str, tuple[str, str]] = {
    "w1": ("penstock_lab.bench.jobs.windows:w1", "key by user, tumbling window of 10 s: count and sum"),
    "w1s": ("penstock_lab.bench.jobs.windows:w1s", "w1 with sliding windows of 10 s, one per second"),
    "w1hot": ("penstock_lab.bench.jobs.windows:w1hot", "w1 with 100 users"),
    "w1skew": ("penstock_lab.bench.jobs.windows:w1skew", "w1 with few users that have most of the events"),
    "w2": (
        "penstock_lab.bench.jobs.running:w2",
        "key by key, count and sum after every event; RocksDB, a checkpoint every 5 s",
    ),
    "w2x": ("penstock_lab.bench.jobs.running:w2x", "w2 with memory for a tenth of the keys"),
    "w3": ("penstock_lab.bench.jobs.stateless:w3", "filter and two columns by expressions, no key, no state"),
    "w4": ("penstock_lab.bench.jobs.kafka_windows:w4", "w1 from Kafka to Kafka, JSON, exactly once"),
    "w5": ("penstock_lab.bench.jobs.process:w5", "w1 in user code: a Python row function with value state and a timer"),
    "startup": (
        "penstock_lab.bench.jobs.startup:startup",
        "time of `penstock run` of a small job to its first result and to its end",
    ),
    "workers": (
        "penstock_lab.bench.jobs.workers:workers",
        "memory of --parallelism slot workers that run one keyed job",
    ),
    "planning": (
        "penstock_lab.bench.jobs.planning:planning",
        "time in which the JobManager plans and deploys 250, 500, 1000 and 2000 subtasks",
    ),
    "latency": (
        "penstock_lab.bench.jobs.latency:latency",
        "delay of rows after a shuffle at half of the job's highest rate",
    ),
    "latency-rows": ("penstock_lab.bench.jobs.latency:latency_rows", "latency with a row function in the same slots"),
    "shuffle": ("penstock_lab.bench.jobs.stateless:shuffle", "only the shuffle: every row to the owner of its key"),
    **{
        f"nexmark-{query}{variant}": (
            f"penstock_lab.bench.jobs.nexmark:{query}{variant.replace('-', '_')}",
            f"Nexmark {query}: {text}",
        )
        for query, text in _NEXMARK.items()
        for variant in ("", "-whole")
    },
}

#: Workloads that `--pairs` runs with and without checkpoints.
_PAIRED = {"w1", "w1s", "w1hot", "w1skew", "w2", "w2x", "w3", "w5", "shuffle"}


#: Workloads whose number of keys can be set.
_COUNTED = {"w2", "w2x"}
#: Workloads that define their own figures and number of runs.
_OWN = {"startup", "workers", "planning"}


def needs_broker(name: str, options: BenchOptions) -> bool:
    """Return whether the workload, or a peer of it, reads from a Kafka broker.

    Raises:
        UsageError: the options request peers, delays, keys or pairs that it does not have.
    """
    if options.latency and name in _OWN:
        raise UsageError(
            f"{name} has no results whose delay could be measured", hint="--latency goes with the other workloads"
        )
    if options.key_count is not None and name not in _COUNTED:
        raise UsageError(f"{name} has its own number of keys", hint="--key-count goes with w2 and w2x")
    peers = peers_of(options.peers, name) if options.peers is not None else ()
    if options.pairs and name not in _PAIRED:
        raise UsageError(f"{name} is not run in pairs", hint=f"--pairs goes with {', '.join(sorted(_PAIRED))}")
    return name == "w4" or any(peer.broker for peer in peers)


def workload(name: str) -> Callable[[BenchOptions], dict[str, Any]]:
    """Return the function of a workload.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in WORKLOADS:
        msg = f"there is no workload {name!r}"
        raise UsageError(msg, hint=f"known: {', '.join(WORKLOADS)}")
    module, _, function = WORKLOADS[name][0].partition(":")
    found: Callable[[BenchOptions], dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found
