"""The differences of two snapshots by state and row."""

from penstock.snapshots.access.opening import open_snapshot
from penstock.snapshots.access.reading import diff


def test_a_snapshot_is_the_same_as_itself_written_otherwise(job, tmp_path):
    newest = job.checkpoint()
    folder = job.savepoint(newest, tmp_path / "sp")
    found = diff(open_snapshot(str(job.folder)), open_snapshot(folder))
    assert {row.verdict for row in found} == {"same"}
    assert {(row.uid, row.state): row.unchanged for row in found}["people", "profile"] == len(job.profiles)


def test_rows_added_removed_and_changed(job):
    folder = str(job.folder)
    found = diff(open_snapshot(folder, checkpoint=1), open_snapshot(folder, checkpoint=2))
    rows = {(row.uid, row.state): row for row in found}
    people = rows["people", "profile"]
    # 0 keeps its number but loses its note; 7 and 249 are gone
    assert (people.verdict, people.added, people.removed, people.changed) == ("changed", 0, 2, 39)
    assert people.unchanged == 250 - 2 - 39
    panes = rows["totals", "panes"]
    assert (panes.added, panes.removed, panes.changed, panes.unchanged) == (50, 300, 100, 100)
    assert rows["orders", "splits"].verdict == "same"


def test_states_that_came_or_went(job):
    newest = job.checkpoint()
    keep = {"people"}
    parts = tuple(
        type(part)(vertex_id="v", subtask=part.subtask, keyed=tuple(k for k in part.keyed if k.uid in keep))
        for part in newest.subtasks
    )
    job.checkpoint(subtasks=parts)
    folder = str(job.folder)
    old, new = open_snapshot(folder, checkpoint=3), open_snapshot(folder, checkpoint=4)
    gone = {(row.uid, row.state): (row.verdict, row.removed) for row in diff(old, new) if row.verdict != "same"}
    assert gone == {("totals", "panes"): ("removed", len(job.panes)), ("orders", "splits"): ("removed", 2)}
    came = {(row.uid, row.state): (row.verdict, row.added) for row in diff(new, old) if row.verdict != "same"}
    assert came == {("totals", "panes"): ("added", len(job.panes)), ("orders", "splits"): ("added", 2)}
