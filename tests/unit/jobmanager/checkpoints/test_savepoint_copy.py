"""A savepoint is copied by several workers, each a part; the manifest comes last."""

from types import SimpleNamespace

import msgspec
import pytest

from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.savepoint_parts import joined_copy, split_for_copy
from penstock.core.snapshot import Committable, FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot
from penstock.jobmanager.checkpoints.savepoint_copy import SavepointCopy
from penstock.rpc.messages import SavepointPart, SealSavepoint, WriteSavepoint


def segment(path, length):
    return Segment(
        file=FileRef(path=path, length=length), position=1, writer="w", rows=1, hash_min=0, hash_max=1,
        namespace_min=0, namespace_max=0,
    )  # fmt: skip


def subtask(number, *lengths):
    segments = tuple(segment(f"data/{number}-{n}", length) for n, length in enumerate(lengths))
    keyed = (KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=0, hash_high=1, segments=segments),)
    return SubtaskSnapshot(vertex_id="v", subtask=number, keyed=keyed)


def output(name, path):
    return Committable(
        id=name, uid="out", run_id="r", subtask=0, checkpoint_id=1, files=(FileRef(path=path, length=9),)
    )


def manifest(*subtasks, pending=()):
    return Manifest(
        kind="savepoint", sequence=1, job_id="j", job_name="job", run_id="r", generation=1, nonce="n", created_ms=1,
        checkpoint_id=3, subtasks=subtasks, pending=pending,
    )  # fmt: skip


def numbers(parts):
    return [[subtask.subtask for subtask in part.subtasks] for part in parts]


def written(part, prefix="new/"):
    """Return a part as a worker answers it: with other files."""
    data = encode_manifest(part).replace(b'"path":"', b'"path":"' + prefix.encode())
    return decode_manifest(data)


def paths(made):
    return [segment.file.path for subtask in made.subtasks for state in subtask.keyed for segment in state.segments]


def test_parts_have_about_the_same_number_of_bytes():
    made = manifest(*(subtask(number, size) for number, size in enumerate((10, 60, 20, 30, 50))))
    assert numbers(split_for_copy(made, 2)) == [[0, 1, 2], [3, 4]]
    assert numbers(split_for_copy(made, 9)) == [[1], [4], [3], [2], [0]]


def test_what_has_no_file_is_in_no_part_and_stays():
    made = manifest(subtask(0), subtask(1, 5), subtask(2))
    (part,) = split_for_copy(made, 4)
    assert numbers([part]) == [[1]]
    assert joined_copy(made, [written(part)]).subtasks == (made.subtasks[0], *written(part).subtasks, made.subtasks[2])
    assert split_for_copy(manifest(subtask(0)), 4) == []


def test_output_is_copied_once_whoever_names_it():
    """A subtask's, which is also pending, and that of an earlier run, which no subtask names."""
    own, earlier = output("own", "a"), output("earlier", "b")
    sink = msgspec.structs.replace(subtask(1), committables=(own,))
    made = manifest(subtask(0, 5), sink, pending=(earlier, own))
    parts = split_for_copy(made, 2)
    assert [[o.id for o in part.pending] for part in parts] == [["earlier"], []]
    joined = joined_copy(made, list(map(written, parts)))
    assert [ref.path for o in joined.pending for ref in o.files] == ["new/b", "new/a"]
    assert joined.subtasks[1].committables == (joined.pending[1],)
    assert [part.pending for part in split_for_copy(manifest(pending=(earlier,)), 2)] == [(earlier,)]


class World:
    """A copy of a job on some workers."""

    def __init__(self, made, workers=2):
        settings = SimpleNamespace(checkpoint_root="memory://root")
        names = [f"w{number}" for number in range(workers)]
        deployment = SimpleNamespace(
            ids=SimpleNamespace(job_id="j"), graph=SimpleNamespace(settings=settings), present_workers=lambda: names
        )
        self.copy = SavepointCopy(deployment, made, "s", "memory://sp")
        self.sent = self.copy.start()

    def answer(self, number, prefix="new/", **changes):
        part = written(decode_manifest(self.sent[number].command.manifest), prefix)
        part = msgspec.structs.replace(part, **changes)
        message = SavepointPart(
            job_id="j", savepoint_id="s", uri="memory://sp", part=number, manifest=encode_manifest(part)
        )
        return self.copy.part_written(message)


@pytest.fixture
def world():
    return World(manifest(subtask(0, 5), subtask(1, 6), subtask(2, 7)))


def test_each_worker_writes_a_part_and_one_the_manifest_when_all_are_written(world):
    assert [(command.worker_id, type(command.command)) for command in world.sent] == [
        ("w0", WriteSavepoint),
        ("w1", WriteSavepoint),
    ]
    assert world.answer(1) == []
    (sealing,) = world.answer(0)
    assert isinstance(sealing.command, SealSavepoint)
    assert paths(decode_manifest(sealing.command.manifest)) == ["new/data/0-0", "new/data/1-0", "new/data/2-0"]


def test_a_part_that_is_answered_twice_counts_once(world):
    assert world.answer(0) == world.answer(0, "other/") == []
    (sealing,) = world.answer(1)
    assert not [path for path in paths(decode_manifest(sealing.command.manifest)) if path.startswith("other/")]


@pytest.mark.parametrize("changes", [{"subtasks": ()}, {"checkpoint_id": 2}, {"run_id": "old"}])
def test_a_part_of_another_division_of_the_job_is_not_used(world, changes):
    """An earlier leader may have sent the same request to more workers, or for another checkpoint."""
    world.answer(0)
    assert world.answer(1, "stale/", **changes) == []
    assert len(world.answer(1)) == 1


def test_a_lost_worker_matters_until_its_part_is_written(world):
    assert world.copy.needs({"w0"})
    assert world.copy.needs({"w1"})
    world.answer(1)
    assert not world.copy.needs({"w1"})
    world.answer(0)
    assert world.copy.needs({"w0"}), "it writes the manifest"


def test_a_job_without_state_has_its_manifest_at_once():
    (sealing,) = World(manifest(subtask(0))).sent
    assert isinstance(sealing.command, SealSavepoint)
