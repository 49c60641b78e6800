"""The servers from a shell: `python -m penstock_lab.servers ensure|run`.

Used by `infra/bootstrap.py` and `infra/servers.sh`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock_lab.servers import choose
from penstock_lab.servers.spec import Server


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m penstock_lab.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ensure", help="fetch and build what the servers need, once per machine")
    run = commands.add_parser("run", help="start Kafka and MinIO and keep them until Ctrl-C or SIGTERM")
    run.add_argument("--data", type=Path, default=Path(".servers"), help="folder for logs and data (kept)")
    run.add_argument("--kafka-port", type=int, default=19092)
    run.add_argument("--minio-port", type=int, default=19000)
    options = parser.parse_args(arguments)
    try:
        if options.command == "ensure":
            choose.prepare(_say)
        else:
            _run(options.data, options.kafka_port, options.minio_port)
    except PenstockError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(data: Path, kafka_port: int, minio_port: int) -> None:
    stops = {signal.SIGINT, signal.SIGTERM}
    with contextlib.ExitStack() as running:
        starts = (
            lambda: choose.start_kafka(data / "kafka", progress=_say, port=kafka_port),
            lambda: choose.start_minio(data / "minio", progress=_say, port=minio_port),
        )
        for start in starts:
            server: Server = start()
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
