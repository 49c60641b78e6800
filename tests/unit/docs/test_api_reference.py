"""The page of the Python API is what the docstrings say, and has every name."""

from tests.support import api_reference

import penstock as ps


def test_the_page_is_generated_from_the_docstrings():
    written = api_reference.PAGE.read_text(encoding="utf-8")
    assert written == api_reference.page(), "run: python -m tests.support.api_reference"


def test_every_public_name_is_on_the_page():
    assert api_reference.listed() == {name for name in dir(ps) if not name.startswith("__")}
