"""State that stays in the object store, on real processes: a worker is killed, and every row is counted once.

Rows wait for their state, and barriers take them along.
"""

import pytest
from tests.cluster.killed_worker import counting_orders, require_each_order_once, rows_after_a_kill

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: By then segments were merged, so that what is read is more than a file that is read at once.
CHECKPOINTS = 10


def test_a_kill_counts_nothing_twice(tmp_path):
    state = {"state_backend": "remote", "managed_memory": "4MB", "local_recovery_bytes": 0}
    settings = {"parallelism": 2, "unaligned_checkpoints": True, **state}
    job = counting_orders(tmp_path, root=str(tmp_path / "checkpoints"), rate=5_000, **settings)
    require_each_order_once(*rows_after_a_kill(job.job_graph("remote"), tmp_path, checkpoints=CHECKPOINTS))
