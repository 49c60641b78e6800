"""Phrases that the field does not use, whose number in code, messages and pages only falls; the length of the pages.

`docs/reference/glossary.md` has the terms to use. Identifiers are not looked at; the changelog and the archive neither.
"""

import ast
import io
import re
import tokenize
from collections import Counter

from tests.tidy.source_tree import ROOT, tracked, tree

CODE = ("platform", "connectors", "operators", "dags", "infra")
#: Use after or downstream; is notified or prints; a noun; no process or no user; uncommitted; again; any; the caller;
#: own or separate; continues or resumes; arrived; is in; no longer.
PHRASES = (
    r"\bbehind\b",
    r"\btold\b",
    r"\A\s*What\b",
    r"\b[Nn]obody\b",
    r"\b[Ss]omebody\b",
    r"\bow(?:ed|es)\b",
    r"\banew\b",
    r"\b[Ww]hatever\b",
    r"\b[Ww]hoever\b",
    r"\bof (?:its|their|your|his) own\b",
    r"\b(?:go|goes|went|gone) on\b",
    r"\bha(?:s|ve) come\b",
    r"\bcame in\b",
    r"\b(?:lies?|stands?) (?:in|there|before|on)\b",
    r"\bno more\b",
)
ANY = re.compile("|".join(PHRASES))
#: Where such a word is the right one ("12 s behind"), and no more of them than there are now.
MOST = 20
#: Words of all hand-written pages without code blocks and targets of links, a little more than there are now.
MOST_WORDS = 28_200
#: Records, and reference pages that list what the code has.
LISTS = ("archive", "python-api", "settings", "cli", "rest", "metrics")


def texts_of(path):
    """Return the strings and comments of a module, or the prose of a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)]
    strings = [
        node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    comments = [
        token.string.lstrip("#: ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return [*strings, *comments]


def test_few_phrases_that_the_field_does_not_use():
    pages = [path for path in tracked() if path.parts[0] == "docs" and path.suffix == ".md"]
    pages = [page for page in pages if "archive" not in page.parts and page.stem != "changelog"]
    found = Counter()
    for path in [*pages, *(path for path in tracked() if path.parts[0] in CODE and path.suffix == ".py")]:
        for text in filter(ANY.search, texts_of(path)):
            for phrase in PHRASES:
                for match in re.finditer(phrase, text):
                    found[f"{path}: {match[0].strip()}"] += 1
    reword = f"{found.total()} phrases, at most {MOST}: reword those of your change (comment of PHRASES)\n"
    assert found.total() <= MOST, reword + "\n".join(f"{count} x {where}" for where, count in found.most_common(200))


def test_the_pages_stay_short():
    pages = [path for path in tracked() if path.suffix == ".md" and path.parts[0] in ("docs", "README.md")]
    counted = {}
    for page in pages:
        if not {*page.parts, page.stem} & set(LISTS):
            text = re.sub(r"\]\([^)]*\)", "]", texts_of(page)[0])
            counted[page] = sum(1 for word in text.split() if re.search(r"\w", word))
    longest = sorted(counted, key=counted.get, reverse=True)[:10]
    assert sum(counted.values()) <= MOST_WORDS, "\n".join(f"{counted[page]} {page}" for page in longest)
