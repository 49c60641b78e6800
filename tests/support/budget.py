"""`python -m tests.support.budget`: seconds by level, from the last whole run into `docs/project/testing.md`.

It also writes `tests/support/durations.json`, from which a new checkout orders its first run. Run it after
`python3 infra/bootstrap.py test` on a quiet machine.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET

from tests.support.lanes import COMMITTED, ROOT, by_level

#: The last run; `.cache/durations.json` has tests of earlier runs too.
LAST_RUN = ROOT / ".cache" / "junit.xml"

PAGE = ROOT / "docs" / "project" / "testing.md"
BEGIN, END = "<!-- budget: begin -->\n", "<!-- budget: end -->\n"


def by_file(junit):
    """Return [cases, seconds] by file, of a report in JUnit's XML."""
    found = {}
    for case in ET.fromstring(junit).iter("testcase"):  # noqa: S314  our own file
        counted = found.setdefault(f"{case.get('classname').replace('.', '/')}.py", [0, 0.0])
        counted[0] += 1
        counted[1] = round(counted[1] + float(case.get("time")), 2)
    return dict(sorted(found.items()))


def table(files):
    """Return the Markdown table of `by_file`'s answer: a line a level, the longest first."""
    levels = by_level((name, *counted) for name, counted in files.items())
    total = sum(seconds for _, _, seconds in levels)
    rows = [f"| `{name}` | {cases} | {seconds:.0f} | {seconds / total:.0%} |" for name, cases, seconds in levels]
    last = f"| all | {sum(cases for _, cases, _ in levels)} | {total:.0f} | 100% |"
    return "\n".join(["| level | cases | seconds | share |", "|---|---|---|---|", *rows, last, ""])


def page_with(text, files):
    """Return the page with the table of these files between its marks."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{table(files)}{END}{after}"


def main() -> int:
    """Write both files."""
    files = by_file(LAST_RUN.read_text())
    COMMITTED.write_text(json.dumps(files, indent=0) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(), files))
    print(table(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
