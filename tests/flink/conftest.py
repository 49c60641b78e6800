"""The simulation loads connectors by name, so the modules must be importable as `tests.flink` and `tests.sim`."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
