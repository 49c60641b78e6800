"""`python -m tests.spark.drawn FAMILY SEED [SEED]`: one drawn job, or those from one seed to another."""

import logging
import sys
import traceback

from tests.spark.drawn.checks import check_here
from tests.spark.drawn.jobs import Drawn


def main():
    """Check some draws; print those that fail."""
    family, first, *last = sys.argv[1:]
    logging.disable(logging.WARNING)
    failed = []
    for seed in range(int(first), int(last[0] if last else first) + 1):
        try:
            drawn = Drawn(family, seed)
            if not last:
                print(drawn)
            check_here(drawn)
        except Exception:
            failed.append(seed)
            traceback.print_exc(limit=-3)
    print(f"{family}: failed {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
