"""`python -m tests.sim --seeds 5000 [--start 1]` or `--seed 4711 --journal`: histories by hand."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.sim.scheduler import SimulationError
from tests.sim.seeds import world_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--journal", action="store_true", help="show what happened even when all is well")
    arguments = parser.parse_args()
    seeds = [arguments.seed] if arguments.seed else range(arguments.start, arguments.start + arguments.seeds)
    counts: Counter[str] = Counter()
    failed = []
    for number, seed in enumerate(seeds, 1):
        world = world_of(seed)
        try:
            counts += world.execute().counts
        except SimulationError as error:
            failed.append(seed)
            print(error)
        if arguments.journal:
            print("\n".join(world.scheduler.journal))
        if number % 100 == 0:
            print(f"{number} seeds, {len(failed)} failed", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{count:8} {kind}")
    print(f"failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
