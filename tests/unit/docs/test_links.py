"""Every link between pages, and every file a page names, exists."""

import re

import pytest
from documents import PAGES, ROOT, prose

PATH = re.compile(r"\b(?:docs|infra|platform|connectors|tests|operators|dags)/[\w/.-]*\w")


def anchors(page):
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    for name in PATH.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), name
