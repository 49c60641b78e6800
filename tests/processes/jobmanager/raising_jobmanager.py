"""A JobManager whose JobMasters raise when a user asks for a savepoint; arguments as for `penstock.cli.serve`."""

import sys

from penstock.cli.serve import main
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.events import SavepointRequested

if __name__ == "__main__":
    handle = JobMaster.handle

    def raising(self, event, now_ms):
        if isinstance(event, SavepointRequested):
            raise ZeroDivisionError("planted")
        return handle(self, event, now_ms)

    JobMaster.handle = raising
    main(sys.argv[1:])
