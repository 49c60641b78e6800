"""The public API keeps its types: what users may write is accepted by mypy --strict, what they may not is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_public_api_is_typed():
    """Every `type: ignore` in the file is a misuse that must be found: one that is not needed is an error too."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(HERE / "public_api.py")],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
