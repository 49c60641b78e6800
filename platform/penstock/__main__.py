"""Entry point of the command `penstock`, and of `python -m penstock`.

Ctrl-C while the command line loads ends it in the same way as later: one line and exit code 130.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def app() -> NoReturn:
    """Load the command line and run it."""
    try:
        from penstock.cli.main import app as run
    except KeyboardInterrupt:
        sys.stderr.write("penstock: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    app()
