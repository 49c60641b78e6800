"""Attempts: whatever dies in between, one thing is asked once; compared with what a user would say happened."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock_airflow.attempts import Attempts


class Store(dict):
    """A task instance's store."""

    def set(self, key, value):
        self[key] = value


def test_begun_and_begun_again_is_one_attempt():
    store = Store()
    token = Attempts(store, "dag/run/task/-1").begin()
    assert len(token) == 32
    assert int(token, 16)
    assert store  # before anything is asked
    assert Attempts(store, "dag/run/task/-1").begin() == token


def test_what_is_lost_with_the_store_is_found_by_the_token():
    assert Attempts(Store(), "a").begin() == Attempts(Store(), "a").begin() != Attempts(Store(), "b").begin()


def test_an_attempt_keeps_its_job_and_loses_it_with_the_next():
    store = Store()
    attempts = Attempts(store, "a")
    attempts.begin()
    attempts.note("j1")
    assert Attempts(store, "a").job_id == "j1"
    Attempts(store, "a").end()
    assert Attempts(store, "a").job_id == "j1"
    again = Attempts(store, "a")
    again.begin()
    assert again.job_id == ""


STEPS = st.lists(st.sampled_from(["begin", "note", "end", "reopen", "die"]), max_size=30)


@given(STEPS)
def test_a_new_token_only_after_an_end(steps):
    store = Store()
    attempts = Attempts(store, "a")
    tokens, ended = [], True
    for step in steps:
        if step == "die":
            attempts = Attempts(store, "a")
        elif step == "begin":
            tokens.append((attempts.begin(), ended))
            ended = False
        elif step == "note" and not ended:
            attempts.note("j")
        elif tokens and step in ("end", "reopen"):
            getattr(attempts, step)()
            ended = step == "end"
    for (before, _), (after, new) in itertools.pairwise(tokens):
        assert (after != before) == new
    assert len({token for token, _ in tokens}) == sum(new for _, new in tokens)
