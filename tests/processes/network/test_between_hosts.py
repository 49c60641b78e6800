"""Workers that claim different hosts: rows go by TCP, on one host by a Unix socket; with certificates by mutual TLS."""

import contextlib
import re
import socket
import ssl
import threading

import pytest
from tests.processes.network.test_connection import DEADLINE, Reader, connect, heard, send
from tests.support.waiting import wait_until
from tests.unit.network.conftest import KEY

from penstock.cli.start.certs import certs
from penstock.config.security import INTERNAL_NAME, Tls
from penstock.config.settings import JobSettings
from penstock.core.clock import SystemClock
from penstock.core.elements import Batch
from penstock.core.errors import UsageError
from penstock.network.connection import NetworkLimits, WorkerNetwork
from penstock.network.handshake import NONCE_BYTES, Handshake, Trust
from penstock.network.sockets import address_to_dial, listeners
from penstock.network.subpartition import ConnectionLostError

BOTH = "tcp:10.0.0.5:4567,unix:/run/a,b/w.sock"


@pytest.mark.parametrize(
    ("endpoint", "own_host", "dialled"),
    [
        (BOTH, "10.0.0.5", "unix:/run/a,b/w.sock"),
        (BOTH, "10.0.0.6", "tcp:10.0.0.5:4567"),
        (BOTH, "", "tcp:10.0.0.5:4567"),
        ("unix:/run/a,b/w.sock", "10.0.0.6", "unix:/run/a,b/w.sock"),
        ("tcp:node7:4567", "node7", "tcp:node7:4567"),
        ("tcp:::1:4567,unix:/run/w.sock", "::1", "unix:/run/w.sock"),
    ],
)
def test_the_nearest_address_is_dialled(endpoint, own_host, dialled):
    assert address_to_dial(endpoint, own_host) == dialled


def test_what_is_advertised_is_not_what_is_bound(tmp_path):
    tcp, unix = listeners("w", f"tcp:127.0.0.1:0=node7.example,unix:{tmp_path}")
    with contextlib.closing(tcp), contextlib.closing(unix):
        assert (tcp.host, unix.host) == ("node7.example", "")
        port = tcp.sock.getsockname()[1]
        assert tcp.sock.getsockname()[0] == "127.0.0.1"
        assert tcp.endpoint == f"tcp:node7.example:{port}"


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_address_of_another_host_is_refused_with_the_option_to_change(host):
    with pytest.raises(UsageError, match=re.escape(host)) as error:
        listeners("w", f"tcp:{host}:0")
    assert "--data-bind" in str(error.value.hint)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Certificates of two clusters."""
    found = {}
    for name in ("ours", "others"):
        found[name] = tmp_path_factory.mktemp("certs") / name
        certs(found[name], host=None, days=1, client_certificates=True)
    return found


def tls_of(folder, name="cluster"):
    return Tls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@contextlib.contextmanager
def two(tmp_path, hosts, trusts, **limits):
    with contextlib.ExitStack() as stack:
        planes = {}
        for worker, host, trust in zip("ab", hosts, trusts, strict=True):
            lost = []
            listen = f"tcp:{host}:0,unix:{tmp_path / host}"
            plane = WorkerNetwork(
                worker,
                listen,
                SystemClock(),
                on_connection_lost=lambda p, r, lost=lost: lost.append(r),
                trust=trust,
                limits=NetworkLimits(**limits),
            )
            plane.lost = lost
            stack.callback(plane.close)
            planes[worker] = plane
        yield planes


def kinds(plane):
    """The families of the sockets of a worker."""
    return {link.sock.family for link in plane._links}


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize(
    ("hosts", "family"),
    [(("127.0.0.1", "127.0.0.1"), socket.AF_UNIX), (("127.0.0.1", "127.0.0.2"), socket.AF_INET)],
)
def test_rows_both_ways_in_order(net, tmp_path, folders, hosts, family, secured):
    trust = Trust(KEY, tls_of(folders["ours"]) if secured else None)
    with two(tmp_path, hosts, (trust, trust)) as planes:
        for source, target in ("ab", "ba"):
            job = net.Job(planes, JobSettings(buffer_timeout_ms=0, buffer_size_bytes=200_000), job_id=source + target)
            reader, room = Reader(), threading.Event()
            output = job.outputs(0, source, [target], wake=room.set)
            gate = job.gate(0, target, [source], reader.data.set)
            job.start()
            batches = [net.rows(1000, first=1000 * n, text="x" * 300) for n in range(40)]
            sender = threading.Thread(target=lambda o=output, r=room, b=batches: (send(o, b, r), o.end()))
            sender.start()
            found = reader.read(gate)
            sender.join(DEADLINE)
            assert net.keys_of(found) == list(range(40_000))
        assert kinds(planes["a"]) == {family}
        secure = {isinstance(link.sock, ssl.SSLSocket) for link in planes["a"]._links}
        assert secure == {secured and family == socket.AF_INET}
        assert planes["a"].lost == planes["b"].lost == []


def test_a_slow_name_server_holds_up_nobody_whose_address_is_known(net, tmp_path, monkeypatch):
    """Rows go between a and b while a waits for the address of c, and to c when it has come."""
    answers, asked, look_up = threading.Event(), threading.Event(), socket.getaddrinfo

    def slow(host, *arguments, **options):
        if host != "slow.example":
            return look_up(host, *arguments, **options)
        asked.set()
        assert answers.wait(DEADLINE)
        return look_up("127.0.0.3", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    trust = Trust(KEY)
    with two(tmp_path, ("127.0.0.1", "127.0.0.2"), (trust, trust)) as planes, contextlib.ExitStack() as stack:
        stack.callback(answers.set)
        planes["c"] = WorkerNetwork("c", "tcp:127.0.0.3:0=slow.example", SystemClock(), trust=trust)
        stack.callback(planes["c"].close)
        readers = {target: Reader() for target in "cb"}

        def begin(target):
            job = net.Job(planes, JobSettings(buffer_timeout_ms=0), job_id=target)
            output, gate = job.outputs(0, "a", [target]), job.gate(0, target, ["a"], readers[target].data.set)
            job.start()
            output.batch(Batch(net.rows(10)))
            output.end()
            return gate

        slow_gate = begin("c")
        assert asked.wait(DEADLINE)
        assert net.keys_of(readers["b"].read(begin("b"))) == list(range(10))
        assert slow_gate.poll() is None
        answers.set()
        assert net.keys_of(readers["c"].read(slow_gate)) == list(range(10))


def test_a_host_that_comes_back_under_another_address_is_reached(net, tmp_path, monkeypatch):
    """The name server tells of its old address first, where nobody listens."""
    asked, look_up = [], socket.getaddrinfo

    def moved(host, *arguments, **options):
        if host == "moved.example":
            asked.append(host)
            host = "127.0.0.9" if len(asked) == 1 else "127.0.0.3"
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", moved)
    trust, clock = Trust(KEY), SystemClock()
    with contextlib.ExitStack() as stack:
        dialling = WorkerNetwork("a", f"unix:{tmp_path}", clock, trust=trust)
        stack.callback(dialling.close)
        found = WorkerNetwork("c", "tcp:127.0.0.3:0=moved.example", clock, trust=trust)
        stack.callback(found.close)
        job, reader = net.Job({"a": dialling, "c": found}, JobSettings(buffer_timeout_ms=0)), Reader()
        output, gate = job.outputs(0, "a", ["c"]), job.gate(0, "c", ["a"], reader.data.set)
        job.start()
        output.batch(Batch(net.rows(10)))
        output.end()
        assert net.keys_of(reader.read(gate)) == list(range(10))
    assert len(asked) == 2


@pytest.mark.parametrize("other", ["others", "client", "none"])
def test_a_worker_without_the_clusters_certificate_is_refused(net, tmp_path, folders, other):
    """It knows the key and the names: of another CA, with a client's certificate of ours, or without TLS."""
    wrong = {"others": tls_of(folders["others"]), "client": tls_of(folders["ours"], "client"), "none": None}[other]
    trusts = Trust(KEY, wrong), Trust(KEY, tls_of(folders["ours"]))
    with two(tmp_path, ("127.0.0.1", "127.0.0.2"), trusts, connect_deadline_ms=500) as planes:
        job = net.Job(planes, JobSettings(buffer_timeout_ms=0))
        reader = Reader()
        output, gate = job.outputs(0, "a", ["b"]), job.gate(0, "b", ["a"], reader.data.set)
        output.batch(Batch(net.rows(10)))
        job.start("a")
        wait_until(lambda: planes["a"].lost, "a lost connection")
        with pytest.raises(ConnectionLostError):
            output.batch(Batch(net.rows(10)))
        assert gate.poll() is None
        assert planes["b"].lost == []


def test_who_knows_all_but_has_no_certificate_reads_nothing(tmp_path, folders):
    trust = Trust(KEY, tls_of(folders["ours"]))
    with two(tmp_path, ("127.0.0.1", "127.0.0.2"), (trust, trust)) as planes:
        endpoint = address_to_dial(planes["a"].endpoint, "elsewhere")
        with connect(endpoint) as sock:
            sock.sendall(Handshake("b", KEY, bytes(NONCE_BYTES), "a").opening())
            with contextlib.suppress(ConnectionResetError):
                assert b"penstock" not in sock.recv(1000)
        context = ssl.create_default_context(cafile=folders["ours"] / "ca.pem")
        with (
            contextlib.suppress(ssl.SSLError, ConnectionResetError),
            connect(endpoint) as plain,
            context.wrap_socket(plain, server_hostname=INTERNAL_NAME) as sock,
        ):
            sock.sendall(Handshake("b", KEY, bytes(NONCE_BYTES), "a").opening())
            assert heard(sock) == []
