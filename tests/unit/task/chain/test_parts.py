"""Mailbox, uploader and failure texts by themselves."""

import itertools
from types import SimpleNamespace

import msgspec
import pytest
from tests.unit.task.conftest import encoded_segment

from penstock.checkpoint.local_copies import LocalCopies, StateFiles
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.clock import ManualClock
from penstock.core.errors import ConnectorError, SnapshotDamagedError, StorageError
from penstock.core.snapshot import FileRef
from penstock.operators.operator import OperatorMetrics
from penstock.state.log.segments import mapped
from penstock.state.memory.budget import MemoryBudget
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.task.chain.failure import describe
from penstock.task.chain.operator_times import OperatorTimes
from penstock.task.chain.uploader import PACK_BYTES, PARALLEL_PACKS, Part, Uploader
from penstock.task.checkpoint.compaction import Compactor
from penstock.task.drive.subtask import Mailbox, MailboxFullError
from penstock.task.drive.subtask_metrics import SubtaskMetrics

#: Bytes of a part that goes to the store.
SMALLEST = PRODUCTION.inline_state_bytes
LINK = SimpleNamespace(records_in=0, records_out=0, hot_keys=None, metrics=OperatorMetrics())


def test_a_mailbox_is_bounded_ordered_and_deaf_once_closed():
    wakes = []
    box = Mailbox(lambda: wakes.append(1), capacity=2)
    assert box.take() is None
    first, second = (lambda: 1), (lambda: 2)
    assert box.post(first)
    assert box.post(second)
    with pytest.raises(MailboxFullError):
        box.post(first)
    assert [box.take(), box.take(), box.take()] == [first, second, None]
    assert len(wakes) == 2
    assert box.post(first, urgent=False)
    assert box.take() is first
    assert len(wakes) == 2
    box.close()
    assert not box.post(first)
    assert box.take() is None


@pytest.fixture
def uploads(world):
    background = world().background
    store = MemoryStore("uploads")
    return store, background, Uploader(store, "run/w", background, itertools.count(1).__next__)


class Store:
    """Offers a job whose run raises, then one that merges."""

    def __init__(self):
        self.offers, self.results = [self.damaged, self.merged], []

    def damaged(self):
        raise SnapshotDamagedError("data/x.pack is damaged")

    def merged(self):
        return encoded_segment(2, b"x", tier=1)

    def compaction(self):
        if not self.offers:
            return None
        offer = self.offers.pop(0)
        return SimpleNamespace(state="panes", run=lambda _read: offer())

    def compacted(self, job, file):
        self.results.append(file)

    def prefetch(self):
        return None


def test_a_compaction_that_fails_is_seen_and_the_next_one_goes_on(uploads, caplog):
    memory, background, uploader = uploads
    store, compactor = (
        Store(),
        Compactor(background, uploader, StateFiles(memory, LocalCopies(None)), lambda mail: mail()),
    )
    marks = {"last_watermark": 0, "watermark_of_last": 0, "last_is_idle": False}
    chain = SimpleNamespace(links=(LINK,), **marks, times=OperatorTimes(ManualClock(), ()))
    metrics = SubtaskMetrics(ManualClock(), None, (), chain, compactor, MemoryBudget(1))
    for _ in range(2):
        compactor.start_due((store,))
        background.run_all()
    assert [file and file.inline for file in store.results] == [None, b"x"]
    assert "data/x.pack is damaged" in caplog.text
    assert (metrics.read()["numCompactions"], metrics.read()["numFailedCompactions"]) == (1, 1)


def large(fill, size=SMALLEST):
    return Part(bytes([fill]) * size)


def test_what_is_queued_at_one_moment_goes_into_one_object(uploads):
    store, background, uploader = uploads
    got = {}
    for number in range(PARALLEL_PACKS):  # these are under way when the others come
        uploader.write((large(number),), lambda refs, error, n=number: got.setdefault(n, (refs, error)))
    for number in range(10, 14):
        parts = (large(number), Part(b"small"), large(number, 40_000))
        uploader.write(parts, lambda refs, error, n=number: got.setdefault(n, (refs, error)))
    background.run_all()
    assert len(store.list("data/")) == PARALLEL_PACKS + 1
    for number in range(10, 14):
        refs, error = got[number]
        assert error is None
        assert refs[1].inline == b"small"
        assert store.read(refs[2].path, refs[2].offset, refs[2].length) == bytes([number]) * 40_000


def test_an_object_is_bounded_but_one_part_may_be_larger(uploads):
    _, background, uploader = uploads
    got = []
    parts = (large(1, PACK_BYTES + 1), large(2), large(3))
    uploader.write(parts, lambda refs, error: got.append(refs))
    background.run_all()
    assert [ref.length for ref in got[0]] == [PACK_BYTES + 1, SMALLEST, SMALLEST]
    assert got[0][1].path == got[0][2].path != got[0][0].path


def test_an_error_is_told_to_everyone_of_the_group_and_the_next_group_goes_on(uploads):
    store, background, uploader = uploads
    put, failing = store.put, [True]

    def broken(key, data):
        if failing:
            raise StorageError("no space")
        put(key, data)

    store.put = broken
    got = []
    for number in range(3):
        uploader.write((large(number),), lambda refs, error: got.append((refs, str(error))))
    background.run_one()
    background.run_one()
    failing.clear()
    background.run_all()
    assert [text for _, text in got] == ["no space", "no space", "None"]


def test_a_queue_that_is_too_long_refuses(uploads):
    store, background, _ = uploads
    uploader = Uploader(store, "run/w", background, itertools.count(1).__next__, StateLimits(queued_bytes=3 * SMALLEST))
    got = []
    for number in range(PARALLEL_PACKS + 4):
        uploader.write((large(number),), lambda refs, error: got.append(error))
    assert len(got) == 1
    assert isinstance(got[0], StorageError)
    background.run_all()
    assert got.count(None) == PARALLEL_PACKS + 3


def test_only_small_parts_never_touch_the_store(uploads):
    store, background, uploader = uploads
    got = []
    uploader.write((Part(b"a"), Part(b"b", "pending")), lambda refs, error: got.append(refs))
    assert [ref.inline for ref in got[0]] == [b"a", b"b"]
    assert not background.waiting
    assert store.list("") == []


def test_a_small_part_that_is_mapped_can_be_written_into_a_manifest(uploads, tmp_path):
    path, got = tmp_path / "spilled", []
    path.write_bytes(b"spilled")
    uploads[2].write((Part(mapped(path)),), lambda refs, error: got.append(refs))
    assert msgspec.json.decode(msgspec.json.encode(got[0][0]), type=FileRef).inline == b"spilled"


def test_an_error_of_the_users_function_names_its_line():
    def users_function():
        return {}["missing"]

    try:
        users_function()
    except KeyError as error:
        line, detail = describe(error)
    assert line.startswith("KeyError: 'missing' (in users_function, test_parts.py:")
    assert detail.startswith("In your code:")


def test_an_error_meant_for_users_is_its_own_sentence_behind_its_name():
    """The JobManager knows by the name what no restart can help."""
    line, _ = describe(ConnectorError("topic x does not exist", hint="create it"))
    assert line == "ConnectorError: topic x does not exist (create it)"


def test_an_error_without_text_still_has_a_name():
    assert describe(ValueError())[0].startswith("ValueError")


def test_a_connectors_frames_are_not_the_users_code():
    row = decode_spec()
    with pytest.raises(ValueError, match="not JSON") as caught:
        row("[")
    assert "In your code:" in describe(caught.value)[1], "this test's own frame"
    inner = caught.value.__traceback__.tb_next
    assert "penstock_connectors" in inner.tb_frame.f_code.co_filename
    assert "In your code:" not in describe(caught.value.with_traceback(inner))[1]


def decode_spec():
    scope: dict = {}
    text = "def decode(text):\n    raise ValueError(f'{text} is not JSON')\n"
    exec(compile(text, "/somewhere/penstock_connectors/formats/x.py", "exec"), scope)  # noqa: S102 - a frame of that path
    return scope["decode"]
