"""When a source is asked for rows: at once, ever more rarely, or after a moment for company."""

from penstock.core.elements import Watermark
from penstock.task.source_pacing import MAX_SOURCE_POLL_MS, SOURCE_POLL_MS, SourcePacing


def test_a_reader_with_more_is_asked_again_at_once():
    pacing = SourcePacing(100)
    pacing.gave(50, drained=False)
    assert not pacing.lingers(50)


def test_a_drained_reader_is_asked_again_after_a_part_of_the_buffer_time_out():
    pacing = SourcePacing(10)
    pacing.gave(50, drained=True)
    assert pacing.lingers(51.9)
    assert pacing.next_ms == 52
    assert not pacing.lingers(52)


def test_lingering_is_bounded_and_there_is_none_without_a_time_out():
    pacing = SourcePacing(60_000)
    pacing.gave(0, drained=True)
    assert pacing.lingers(24.9)
    assert not pacing.lingers(25)
    pacing = SourcePacing(0)
    pacing.gave(0, drained=True)
    assert not pacing.lingers(0)


def test_an_empty_reader_is_asked_ever_more_rarely_until_it_has_rows():
    pacing = SourcePacing(10)
    waits = []
    for _ in range(8):
        pacing.gave_nothing(0)
        waits.append(pacing.next_ms)
    assert waits[:3] == [SOURCE_POLL_MS, 2 * SOURCE_POLL_MS, 4 * SOURCE_POLL_MS]
    assert waits[-1] == MAX_SOURCE_POLL_MS
    pacing.gave(0, drained=False)
    pacing.gave_nothing(0)
    assert pacing.next_ms == SOURCE_POLL_MS


def test_a_subtask_lets_a_drained_source_linger_whoever_wakes_it(world, batch_of):
    w = world()
    w.deploy()
    w.settle()
    source = w.sources[0]
    w.subtasks("source")[0]._pacing = SourcePacing(10)
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
