"""Calls that may hang: how many threads they take, how long they are waited for, and who is held up by them."""

import asyncio
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests.support.waiting import until

import penstock as ps
from penstock.core.errors import UnreachableError
from penstock.jobmanager.cluster.daemon_thread_pool import DaemonThreadPool
from penstock.jobmanager.jobs import enumerators, savepoint_folders
from penstock_connectors.kafka import KafkaSource

LIMIT_S = 120


async def test_calls_take_turns_and_raise_what_they_raise():
    threads = DaemonThreadPool("t", 2)
    running, most, lock = 0, 0, threading.Lock()

    def counted(n):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(LIMIT_S)
        with lock:
            running -= 1
        return 10 // n

    gate = threading.Event()
    asked = [asyncio.create_task(threads.call(LIMIT_S, counted, n)) for n in (1, 2, 5, 0)]
    await until(lambda: running == 2, "two calls under way")
    assert threads._started == 2, "there is no thread for a third"
    gate.set()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert (told[:3], type(told[3]), most) == ([10, 5, 2], ZeroDivisionError, 2)
    threads.close()


async def test_where_all_hang_the_next_is_refused_at_once_until_one_returns():
    threads, go = DaemonThreadPool("t", 2), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await threads.call(0.05, go.wait, LIMIT_S)
    with pytest.raises(TimeoutError, match="2 earlier calls have not returned"):
        await threads.call(None, str)
    go.set()
    await until(lambda: all(future.done() for future in threads._abandoned), "the calls that hung return")
    assert await threads.call(LIMIT_S, str, 7) == "7"
    threads.close()


async def test_a_call_that_nobody_waits_for_any_more_does_not_begin():
    threads, go, hangs, begun = DaemonThreadPool("t", 1), threading.Event(), threading.Event(), []

    def hang():
        hangs.set()
        return go.wait(LIMIT_S)

    first = asyncio.create_task(threads.call(LIMIT_S, hang))
    await until(hangs.is_set, "the first call")
    with pytest.raises(TimeoutError):
        await threads.call(0.05, begun.append, "late")
    go.set()
    assert await first
    assert await threads.call(LIMIT_S, str) == ""
    assert begun == []
    threads.close()


def test_a_call_that_hangs_does_not_keep_the_process():
    program = """
import asyncio, threading
from penstock.jobmanager.cluster.daemon_thread_pool import DaemonThreadPool
from penstock_connectors.kafka import KafkaSource
async def main():
    try:
        await DaemonThreadPool("t", 1).call(0.1, threading.Event().wait)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "given up\n"


async def free_besides(calls, hanging):
    """Return whether the loop's own only thread is free while these hang."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    tasks = [asyncio.create_task(call) for call in calls]
    await until(hanging, "calls that hang")
    try:
        return await asyncio.wait_for(asyncio.to_thread(lambda: True), LIMIT_S), tasks
    except TimeoutError:
        return False, tasks


async def test_targets_that_hang_hold_up_no_lease_and_further_ones_are_refused(monkeypatch):
    go = threading.Event()
    written = []
    monkeypatch.setattr(savepoint_folders, "_write", lambda *_: written.append(1) or go.wait(LIMIT_S))
    job = SimpleNamespace(record=SimpleNamespace(ended="", job_id="a" * 32), continues=True)
    side = {"probe": True, "threads": DaemonThreadPool("probe", 4), "limit_s": 0.5}
    ask = lambda n: savepoint_folders.savepoint_target(job, "/dead", f"{n}", **side)
    free, tasks = await free_besides([ask(n) for n in range(6)], lambda: len(written) == 4)
    try:
        assert free
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert all("did not answer within" in str(error) for error in told)
        with pytest.raises(UnreachableError, match="did not answer: 4 earlier calls have not returned"):
            await ask(7)
    finally:
        go.set()


async def test_connectors_that_hang_hold_up_no_lease(monkeypatch, graph_of):
    go = threading.Event()
    begun = []
    monkeypatch.setattr(enumerators, "_validate", lambda *_: begun.append(1) or go.wait(LIMIT_S))
    threads = DaemonThreadPool("validation", 4)
    asked = [enumerators.validate(graph_of(), threads) for _ in range(6)]
    free, tasks = await free_besides(asked, lambda: len(begun) == 4)
    go.set()
    await asyncio.gather(*tasks)
    assert free


async def test_a_connector_whose_system_hangs_is_named_with_its_address(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(enumerators, "load_connector", lambda _: SimpleNamespace(validate=lambda *_: go.wait(LIMIT_S)))
    env = ps.Environment(1)
    env.from_source(KafkaSource("broker:9092", topic="orders", format="raw"), uid="in").print()
    name = re.escape("source 'in': topic orders at broker:9092 did not answer the check of the submit within 0.05 s")
    try:
        with pytest.raises(UnreachableError, match=rf"^test_daemon_thread_pool\.py:\d+: {name}"):
            await enumerators.validate(env.job_graph("j"), DaemonThreadPool("validation", 1), timeout_s=0.05)
    finally:
        go.set()
