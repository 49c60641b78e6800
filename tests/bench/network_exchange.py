"""Measure the data plane: two worker processes exchange rows over one connection; prints one JSON line.

    python tests/bench/network_exchange.py [--rows N] [--batch N] [--pattern forward|keyed] [--listen unix|tcp]

`forward`: worker a sends all rows to worker b. `keyed`: both send, half of the rows stay, half go to the other. The
result counts rows, distinct keys and their sum as received, so that a fast but wrong exchange is seen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time

import numpy as np
import pyarrow as pa

from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import Batch, EndOfInput, Watermark
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import Forward, KeyGroup
from penstock.graph.task_deployment import (
    ChannelId,
    ExecutionId,
    InputChannelSpec,
    InputSpec,
    OutputChannelSpec,
    OutputSpec,
    TaskDeployment,
)
from penstock.network.connection import WorkerNetwork

SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in (("k", pa.int64()), ("v", pa.float64()), ("t", pa.int64()))]
)
WORKERS = ("a", "b")
DEADLINE_SECONDS = 120


def deployment(vertex, subtask, settings, *, inputs=(), outputs=()):
    return TaskDeployment(
        job_id="bench",
        job_name="bench",
        run_id="run",
        generation=1,
        execution=ExecutionId(vertex, subtask, 0),
        vertex_name=vertex,
        parallelism=2,
        hash_low=0,
        hash_high=0,
        operators=(),
        inputs=inputs,
        outputs=outputs,
        settings=settings,
    )


def edges(options, subtask, endpoints):
    """Return (outputs, inputs) of this worker's two subtasks."""
    text = schema_to_text(SCHEMA)

    def channel(source, target):
        return ChannelId(0, source, target, 1)

    if options.pattern == "forward":
        to_b = OutputSpec(
            partitioner=Forward(), schema=text, channels=(OutputChannelSpec(channel(0, 0), "b", endpoints["b"]),)
        )
        from_a = InputSpec(input_index=0, schema=text, channels=(InputChannelSpec(channel(0, 0), "a", endpoints["a"]),))
        return ((to_b,), ()) if subtask == 0 else ((), (from_a,))
    outputs = OutputSpec(
        partitioner=KeyGroup(("k",)),
        schema=text,
        channels=tuple(OutputChannelSpec(channel(subtask, t), w, endpoints[w]) for t, w in enumerate(WORKERS)),
    )
    inputs = InputSpec(
        input_index=0,
        schema=text,
        channels=tuple(InputChannelSpec(channel(s, subtask), w, endpoints[w]) for s, w in enumerate(WORKERS)),
    )
    return (outputs,), (inputs,)


def run_worker(subtask, options, pipe):
    worker = WORKERS[subtask]
    sys.setswitchinterval(0.0005)
    listen = f"unix:{options.folder}" if options.listen == "unix" else "tcp:127.0.0.1:0"
    lost = []
    clock = SystemClock()
    plane = WorkerNetwork(worker, listen, clock, on_connection_lost=lambda p, r: lost.append(r))
    pipe.send((worker, plane.endpoint))
    outputs_spec, inputs_spec = edges(options, subtask, pipe.recv())
    settings = JobSettings(buffer_timeout_ms=options.timeout_ms)
    data, room = threading.Event(), threading.Event()
    outputs = plane.create_outputs(deployment("s", subtask, settings, outputs=outputs_spec), room.set)
    gate = plane.create_gate(deployment("t", subtask, settings, inputs=inputs_spec), data.set)
    count = options.rows // options.batch
    batches = [make_batch(n, options.batch) for n in range(min(count, 64))] if outputs else []
    plane.start_channels("bench")
    pipe.send("ready")
    pipe.recv()
    started, cpu = time.perf_counter(), time.process_time()
    sender = threading.Thread(target=send, args=(outputs, batches, count, room, clock))
    sender.start()
    result = receive(gate, data, check=options.check) if gate is not None else {}
    sender.join()
    result.update(seconds=time.perf_counter() - started, cpu=time.process_time() - cpu, lost=lost)
    pipe.send(result)
    pipe.recv()
    plane.close()


def make_batch(number, rows):
    keys = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
    return pa.record_batch([pa.array(keys), pa.array(keys.astype(np.float64)), pa.array(keys)], schema=SCHEMA)


def send(outputs, batches, count, room, clock):
    for output in outputs:
        for n in range(count):
            while not output.available:
                if not room.wait(DEADLINE_SECONDS):
                    raise TimeoutError("no room in the output")
                room.clear()
            output.batch(Batch(batches[n % len(batches)]))
            output.watermark(Watermark(n))
            output.flush_due(clock.monotonic_ms())
        output.end()


def receive(gate, data, *, check):
    rows = batches = total = ends = 0
    while ends < gate.channel_count:
        polled = gate.poll()
        if polled is None:
            if not data.wait(DEADLINE_SECONDS):
                raise TimeoutError("nothing arrived")
            data.clear()
            continue
        element = polled[1]
        if isinstance(element, Batch):
            rows += element.num_rows
            batches += 1
            if check:
                total += int(element.data.column("k").to_numpy().sum())
        elif isinstance(element, EndOfInput):
            ends += 1
    return {"rows": rows, "batches": batches, "key_sum": total, "bytes": gate.bytes_in}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows each sender makes")
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--pattern", choices=["forward", "keyed"], default="keyed")
    parser.add_argument("--listen", choices=["unix", "tcp"], default="unix")
    parser.add_argument("--timeout-ms", type=int, default=100)
    parser.add_argument("--check", action="store_true", help="sum the keys received too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as options.folder:
        results = exchange(options)
    received = [r for r in results if "rows" in r]
    rows, size = sum(r["rows"] for r in received), sum(r["bytes"] for r in received)
    seconds, cpu = max(r["seconds"] for r in results), sum(r["cpu"] for r in results)
    report = {
        "pattern": options.pattern,
        "listen": options.listen,
        "batch_rows": options.batch,
        "rows": rows,
        "key_sum": sum(r["key_sum"] for r in received),
        "batches_received": sum(r["batches"] for r in received),
        "rows_per_second": round(rows / seconds),
        "rows_per_cpu_second": round(rows / cpu),
        "gigabytes_per_second": round(size / seconds / 1e9, 3),
        "cpu_seconds": round(cpu, 3),
        "lost": [reason for r in results for reason in r["lost"]],
    }
    print(json.dumps(report))


def exchange(options):
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for subtask in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=run_worker, args=(subtask, options, there)))
        processes[-1].start()
        pipes.append(here)
    endpoints = dict(answer(pipe) for pipe in pipes)
    tell(pipes, endpoints)
    for pipe in pipes:
        answer(pipe)
    tell(pipes, "go")
    results = [answer(pipe) for pipe in pipes]
    tell(pipes, "close")
    for process in processes:
        process.join(DEADLINE_SECONDS)
    return results


def answer(pipe):
    if not pipe.poll(DEADLINE_SECONDS):
        raise TimeoutError("a worker does not answer")
    return pipe.recv()


def tell(pipes, what):
    for pipe in pipes:
        pipe.send(what)


if __name__ == "__main__":
    main()
