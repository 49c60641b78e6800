"""When a source is asked for rows: at once, ever more rarely, or after a moment for company."""

from penstock.core.elements import Watermark
from penstock.task.drive.source_polling import FEW_ROWS, MAX_SOURCE_POLL_MS, SOURCE_POLL_MS, SourcePacing


def pacing_of(timeout, *, sends=True):
    return SourcePacing(timeout, sends=sends)


def test_a_reader_with_more_is_asked_again_at_once():
    pacing = pacing_of(100)
    pacing.record_rows(50, 10, drained=False)
    assert not pacing.is_too_early(50)


def test_a_reader_of_few_rows_is_asked_at_the_multiples_of_the_buffer_time_out():
    pacing = pacing_of(100)
    for asked, again in ((50, 100), (100.4, 200), (200, 300)):
        pacing.record_rows(asked, 10, drained=True)
        assert pacing.is_too_early(again - 0.1)
        assert pacing.next_ms == again
        assert not pacing.is_too_early(again)


def test_a_reader_of_many_rows_is_asked_again_after_a_part_of_the_buffer_time_out():
    pacing = pacing_of(10)
    pacing.record_rows(40, 0, drained=True)
    pacing.record_rows(50, 2 * FEW_ROWS, drained=True)
    assert pacing.is_too_early(51.9)
    assert pacing.next_ms == 52
    assert not pacing.is_too_early(52)


def test_many_rows_after_a_long_time_are_few():
    pacing = pacing_of(100)
    pacing.record_rows(0, 1, drained=True)
    pacing.record_rows(5_050, 10 * FEW_ROWS, drained=True)
    assert pacing.is_too_early(5_099)


def test_a_source_whose_rows_stay_in_its_subtask_lingers_briefly():
    pacing = pacing_of(100, sends=False)
    pacing.record_rows(50, 1, drained=True)
    assert pacing.is_too_early(69.9)
    assert not pacing.is_too_early(70)


def test_lingering_is_bounded_and_there_is_none_without_a_time_out():
    for sends, most in ((True, 100), (False, 25)):
        pacing = pacing_of(60_000, sends=sends)
        pacing.record_rows(0, 1, drained=True)
        assert pacing.is_too_early(most - 0.1)
        assert not pacing.is_too_early(most)
    pacing = pacing_of(0)
    pacing.record_rows(0, 1, drained=True)
    assert not pacing.is_too_early(0)


def test_an_empty_reader_is_asked_ever_more_rarely_until_it_has_rows():
    pacing = pacing_of(10)
    waits = []
    for _ in range(8):
        pacing.record_empty_poll(0)
        waits.append(pacing.next_ms)
    assert waits[:3] == [SOURCE_POLL_MS, 2 * SOURCE_POLL_MS, 4 * SOURCE_POLL_MS]
    assert waits[-1] == MAX_SOURCE_POLL_MS
    pacing.record_rows(0, 1, drained=False)
    pacing.record_empty_poll(0)
    assert pacing.next_ms == SOURCE_POLL_MS


def test_a_subtask_lets_a_drained_source_linger_whoever_wakes_it(world, batch_of):
    w = world()
    w.deploy()
    w.settle()
    source = w.sources[0]
    w.subtasks("source")[0]._pacing = pacing_of(10, sends=False)
    source.drained = True
    source.script.extend([batch_of(1), batch_of(2), Watermark(5)])
    w.settle()
    assert len(source.script) == 2
    w.clock.advance(1)
    w.settle()
    assert len(source.script) == 2
    w.clock.advance(1)
    w.settle()
    assert len(source.script) == 1
