"""Pages, tables and code blocks of the documentation, for the tests in this folder."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def read(page):
    """Return a page's text; `page` is relative to the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


def prose(page):
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)


def rows(page, heading):
    """Return the cells of the first table below a heading, without its head."""
    part = read(page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def tables(page, head):
    """Return the cells of all tables of a page whose first column has this head, without the heads."""
    found, cells = [], None
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            cells = None
        elif cells is None:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            wanted = cells[0] == head
        elif wanted and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def names(cell):
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)
