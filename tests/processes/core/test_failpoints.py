"""A failpoint that kills its process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def test_kill_ends_the_process_after_leaving_evidence(tmp_path: Path) -> None:
    code = "from penstock.core import failpoints; failpoints.hit('task.after_ack', checkpoint=7); print('alive')"
    environment = {**os.environ, "PENSTOCK_FAILPOINTS": "task.after_ack=kill", "PENSTOCK_FAILPOINT_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "task.after_ack.hit").read_text())["checkpoint"] == "7"
