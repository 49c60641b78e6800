"""How long output stands still when the leader fails: `python -m tests.bench.leader_gap [--fault paused]`.

Three JobManagers, two workers, Kafka to Kafka exactly once, a checkpoint every 300 ms, four windows a second, state on
MinIO, HA root in a folder or, with `--ha s3`, on MinIO. The output is checked at the end.
"""

import argparse
import json
import os

from tests.bench.servers import kafka_and_minio
from tests.cluster.leader_faults import FAULTS, figures, leaders_fail
from tests.cluster.stage import Stage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fault", choices=FAULTS, default="killed")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--pause", type=float, nargs=2, default=(10.0, 60.0), help="least and most seconds of a pause")
    parser.add_argument("--ha", choices=("folder", "s3"), default="folder", help="where the HA root is")
    options = parser.parse_args()
    with kafka_and_minio() as (folder, kafka, minio):
        (folder / "stage").mkdir()
        stage = Stage(kafka, minio, "bench", "gap-", folder / "stage")
        tell = lambda change: print(change, flush=True)
        ha_root = stage.root("ha") if options.ha == "s3" else None
        found = leaders_fail(stage, options.fault, options.times, options.pause, tell, ha_root)
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"fault": options.fault, "ha": options.ha, **figures(found), "load": load}))


if __name__ == "__main__":
    main()
