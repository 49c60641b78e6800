"""A server process is awaited with a deadline, is found dead, and dies with its starter."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import ConnectorError
from penstock_lab.servers.process import PORT_RANGE, Command, LocalProcess, accepts, free_port

pytestmark = pytest.mark.processes

LISTEN = """
import signal, socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
signal.pause()
"""


def listener(tmp_path, port):
    return LocalProcess(Command(name="listener", argv=[sys.executable, "-c", LISTEN, str(port)], log=tmp_path / "log"))


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/status").read_text().split("State:")[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_start_returns_when_ready_and_stop_frees_the_port(tmp_path):
    port = free_port()
    process = listener(tmp_path, port)
    process.start(lambda: accepts(port), 20_000)
    pid = process.pid
    assert alive(pid)
    assert accepts(port)
    process.start(lambda: False, 1)  # already running: not started again
    assert process.pid == pid
    process.stop(10_000)
    assert process.pid is None
    assert not alive(pid)
    assert not accepts(port)
    process.stop(10_000)


def test_a_killed_process_starts_again_on_its_port(tmp_path):
    port = free_port()
    process = listener(tmp_path, port)
    process.start(lambda: accepts(port), 20_000)
    first = process.pid
    process.kill()
    assert not alive(first)
    process.start(lambda: "listening" in process.log_text() and accepts(port), 20_000)
    assert process.pid not in (None, first)
    assert process.log_text().count("listening") == 1  # only this start's lines
    process.kill()


def test_dying_while_starting_names_the_reason(tmp_path):
    argv = [sys.executable, "-c", "import sys; print('no licence'); sys.exit(7)"]
    process = LocalProcess(Command(name="broken", argv=argv, log=tmp_path / "log"))
    with pytest.raises(ConnectorError, match="broken ended with code 7 while starting: no licence") as error:
        process.start(lambda: False, 20_000)
    assert str(tmp_path / "log") in error.value.hint
    assert process.pid is None


def test_a_start_that_is_never_ready_leaves_nothing_running(tmp_path):
    process = LocalProcess(Command(name="slow", argv=["sleep", "600"], log=tmp_path / "log"))
    with pytest.raises(ConnectorError, match="slow was not ready within 0 s"):
        process.start(lambda: False, 200)
    assert process.pid is None


def test_the_process_outlives_the_thread_that_started_it(tmp_path):
    port = free_port()
    process = listener(tmp_path, port)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(process.start, lambda: accepts(port), 20_000).result()
    assert accepts(port)
    process.stop(10_000)


def test_the_process_dies_with_a_starter_that_was_killed(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from penstock_lab.servers.process import Command, LocalProcess
        process = LocalProcess(Command(name="sleeper", argv=["sleep", "600"], log=Path(sys.argv[1])))
        process.start(lambda: True, 20_000)
        print(process.pid, flush=True)
        sys.stdin.read()
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        pid = int(starter.stdout.readline())
        assert alive(pid)
        starter.kill()
    clock = SystemClock()
    deadline = clock.monotonic_ms() + 10_000
    while alive(pid) and clock.monotonic_ms() < deadline:
        clock.sleep_ms(20)
    assert not alive(pid)


def test_free_ports_lie_below_those_of_outgoing_connections():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() in PORT_RANGE
    assert PORT_RANGE[-1] < low
