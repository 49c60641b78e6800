"""The bare loop as a peer: `ceiling.py FILE EVENTS` runs it and says its own figures as `penstock bench` wants them.

It meters itself, from the first event to the last result, its kernels warm. Its answer is at times wrong, because
nothing bounds how far one of its sources is ahead (`bare_loop.py` does): the peer is then run again.
"""

import json
import re
import subprocess
import sys

FIGURES = re.compile(r"wall ([\d.]+) M/s\s+per CPU-s ([\d.]+) M\s+checksum ([\d:]+)")


def main():
    done = subprocess.run([sys.executable, *sys.argv[1:3]], capture_output=True, text=True, timeout=1200)
    found = FIGURES.search(done.stdout)
    if done.returncode or found is None:
        sys.exit(f"the bare loop gave no figures: {(done.stderr or done.stdout).strip()[-300:]}")
    record = {"events_per_cpu_second": float(found[2]) * 1e6, "checksum": found[3]}
    sys.stdout.write(f"BENCH {json.dumps(record)}\n")


if __name__ == "__main__":
    main()
