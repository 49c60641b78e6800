"""A command that waits for one call says so, and only while it waits."""

import signal

from penstock.cli import silence
from penstock.cli.silence import reading, said_while_waiting
from penstock.core.clock import ManualClock


def test_the_line_comes_after_5_s_and_none_afterwards(capsys):
    clock, before = ManualClock(), signal.getsignal(signal.SIGALRM)
    with said_while_waiting("waiting for the store", clock):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        signal.raise_signal(signal.SIGALRM)
        assert not capsys.readouterr().err
        for _ in range(2):
            clock.advance(5_000)
            signal.raise_signal(signal.SIGALRM)
    assert capsys.readouterr().err == "waiting for the store\n"
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0, "the timer before repeats nothing"


def test_an_object_store_is_named_with_its_server(capsys, monkeypatch):
    monkeypatch.setenv("PENSTOCK_S3_ENDPOINT", "http://127.0.0.1:9000")
    monkeypatch.setattr(silence, "require_answer", lambda _: None)
    clock = ManualClock()
    with reading("s3://bucket/x", clock):
        clock.advance(5_000)
        signal.raise_signal(signal.SIGALRM)
    assert "waiting for s3://bucket/x at http://127.0.0.1:9000; check that" in capsys.readouterr().err


def test_a_local_folder_sets_no_alarm():
    before = signal.getsignal(signal.SIGALRM)
    with reading("/folder"):
        assert signal.getsignal(signal.SIGALRM) == before
