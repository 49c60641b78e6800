"""Read the input positions of a stopped job from its savepoint."""

import json

import penstock as ps


def rows_read(uri, uid="orders"):
    """Return how many rows a generator had given at the cut, all its splits together."""
    items = ps.snapshots.read(str(uri), uid=uid, name="splits").collect()["item"]
    positions = [json.loads(item)["state"]["position"] for item in items]
    assert positions, f"no split of {uid} in {uri}"
    return sum(positions)
