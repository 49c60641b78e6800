"""A slot worker that no template forks, because one could not safely: it imports and warms up by itself.

`python -m penstock.taskmanager.spawned`, started by `taskmanager.environments`.
"""

from __future__ import annotations

import os
import sys

import msgspec

from penstock.core.errors import PenstockError
from penstock.taskmanager.process_control import arm_lease, close_other_descriptors, die_with_parent
from penstock.taskmanager.template import START_LEASE_MS, become_worker, warm_up
from penstock.taskmanager.template_messages import KEY_VARIABLE, ForkWorker, decode_spec
from penstock.taskmanager.worker import BROKEN


def main(arguments: list[str]) -> None:
    """Run a spawned worker: `<control descriptor> <supervisor pid> <spec in hex>`."""
    descriptor, supervisor_pid = int(arguments[0]), int(arguments[1])
    die_with_parent(supervisor_pid)
    close_other_descriptors({descriptor})
    code = BROKEN
    arm_lease(START_LEASE_MS)
    try:
        warm_up()
        spec = msgspec.structs.replace(
            decode_spec(bytes.fromhex(arguments[2])), key=bytes.fromhex(os.environ.pop(KEY_VARIABLE))
        )
        code = become_worker(ForkWorker(spec), descriptor)
    except PenstockError as error:
        sys.stderr.write(f"penstock worker: {error}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
