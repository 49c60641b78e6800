"""The servers from a shell: `python -m penstock_lab.servers ensure|run`.

Used by `infra/bootstrap.py` and `infra/servers.sh`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock_lab.servers import choose
from penstock_lab.servers.spec import Server


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m penstock_lab.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ensure = commands.add_parser("ensure", help="fetch and build what the servers need, once per machine")
    run = commands.add_parser("run", help="start the servers and keep them until Ctrl-C or SIGTERM")
    for command in (ensure, run):
        command.add_argument("servers", nargs="*", metavar="kafka|minio", help="only these; default both")
    run.add_argument("--data", type=Path, default=Path(".servers"), help="folder for logs and data (kept)")
    run.add_argument("--kafka-port", type=int, default=19092)
    run.add_argument("--minio-port", type=int, default=19000)
    options = parser.parse_args(arguments)
    servers = options.servers or list(choose.SERVERS)
    if unknown := sorted({*servers} - {*choose.SERVERS}):
        parser.error(f"no server {unknown[0]!r}: one of {', '.join(choose.SERVERS)}")
    try:
        if options.command == "ensure":
            choose.prepare(_say, servers)
        else:
            _run(options.data, {"kafka": options.kafka_port, "minio": options.minio_port}, servers)
    except PenstockError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(data: Path, ports: Mapping[str, int], servers: Sequence[str]) -> None:
    stops = {signal.SIGINT, signal.SIGTERM}
    starts: dict[str, Callable[[], Server]] = {
        "kafka": lambda: choose.start_kafka(data / "kafka", progress=_say, port=ports["kafka"]),
        "minio": lambda: choose.start_minio(data / "minio", progress=_say, port=ports["minio"]),
    }
    with contextlib.ExitStack() as running:
        for name in servers:
            server = starts[name]()
            running.callback(_stop, server)
            sys.stdout.write(json.dumps({"server": server.name, "endpoint": server.endpoint, "pid": server.pid}) + "\n")
            sys.stdout.flush()
        # blocked only now: exec inherits blocked signals, and the servers must receive theirs
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        signal.sigwait(stops)


def _stop(server: Server) -> None:
    _say(f"stopping {server.name}")
    server.remove()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
