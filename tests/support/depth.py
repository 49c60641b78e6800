"""How deep a run goes: `fast` while one edits, `gate` before code lands, `nightly` with everything.

The depth is `PENSTOCK_TEST_DEPTH`, which `infra/bootstrap.py test [fast|nightly]` sets. A test that only runs in a
nightly run has the mark `nightly`. Property tests say with `@examples(n)` how many examples the full depth has.
"""

import os

from hypothesis import HealthCheck, settings

DEPTHS = ("fast", "gate", "nightly")
#: Part of the examples that a depth runs, and the fewest.
_PART = {"fast": 0.04, "gate": 0.04, "nightly": 1.0}
_FEWEST = {"fast": 2, "gate": 3, "nightly": 20}


def depth():
    """Return the depth of this run.

    Raises:
        ValueError: `PENSTOCK_TEST_DEPTH` is none of `DEPTHS`.
    """
    found = os.environ.get("PENSTOCK_TEST_DEPTH", "gate")
    if found not in DEPTHS:
        raise ValueError(f"PENSTOCK_TEST_DEPTH is {found!r} (one of {', '.join(DEPTHS)})")
    return found


def examples(count):
    """Return the settings of a property test whose usual number of examples is `count`; a decorator."""
    return settings(max_examples=scaled(count))


def scaled(count):
    """Return `count`, scaled to the depth of this run and never below the depth's fewest."""
    found = depth()
    return max(min(_FEWEST[found], count), round(count * _PART[found]))


def first_seed():
    """Return the first seed of simulated histories: 1, in a nightly run the commit's (`PENSTOCK_TEST_SEED`)."""
    return int(os.environ.get("PENSTOCK_TEST_SEED") or 1) if depth() == "nightly" else 1


def register():
    """Register and load the profile of this depth.

    `fast` and `gate` draw the same examples in each run. `nightly` draws new ones from `--hypothesis-seed`, and prints
    how to reproduce a failure.
    """
    same = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    settings.register_profile("suite", derandomize=True, max_examples=scaled(100), **same)
    settings.register_profile("explore", print_blob=True, max_examples=scaled(100), **same)
    settings.load_profile("explore" if depth() == "nightly" else "suite")
