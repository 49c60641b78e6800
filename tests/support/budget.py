"""`python -m tests.support.budget`: seconds by level, from the last whole run into `docs/testing.md`.

It also writes `tests/support/durations.json`, from which a new checkout orders its first run. Run it after
`python3 infra/bootstrap.py test` on a quiet machine.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from tests.support.lanes import COMMITTED, RECORDED, ROOT, file_of, level_of

PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- budget: begin -->\n", "<!-- budget: end -->\n"


def by_file(tests):
    """Return [cases, seconds] by file of {test: seconds}."""
    found = {}
    for nodeid, seconds in sorted(tests.items()):
        counted = found.setdefault(file_of(nodeid), [0, 0.0])
        counted[0] += 1
        counted[1] = round(counted[1] + seconds, 2)
    return found


def table(files):
    """Return the Markdown table of `by_file`'s answer: a line a level, the longest first."""
    cases, seconds = Counter(), Counter()
    for name, (count, value) in files.items():
        cases[level_of(name)] += count
        seconds[level_of(name)] += value
    total = sum(seconds.values())
    rows = [
        f"| `{name}` | {cases[name]} | {value:.0f} | {value / total:.0%} |" for name, value in seconds.most_common()
    ]
    last = f"| all | {sum(cases.values())} | {total:.0f} | 100% |"
    return "\n".join(["| level | cases | seconds | share |", "|---|---|---|---|", *rows, last, ""])


def page_with(text, files):
    """Return the page with the table of these files between its marks."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{table(files)}{END}{after}"


def main() -> int:
    """Write both files."""
    files = by_file(json.loads(RECORDED.read_text()))
    COMMITTED.write_text(json.dumps(files, indent=0) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(), files))
    print(table(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
