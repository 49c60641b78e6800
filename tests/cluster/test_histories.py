"""Going back, starting over, forking, and a broker that is away: exact, or refused with the reason."""

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders, create_topics, verdict

from penstock.core.errors import PenstockError
from penstock_lab.servers import start_kafka

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Two jobs beside each other.
TASKMANAGERS = 4
EVENTS, RATE = 12_000, 4_000


def starts(rows):
    return [row[1] for row in rows]


def test_an_old_savepoint_is_refused_and_accepted_only_by_name(stage, shared):
    """The output after the savepoint is published already: going back writes it a second time, and only that."""
    with Scene(stage, Orders(11, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_rows()
        uri = scene.savepoint()
        scene.feed.join()
        scene.wait_finished()
        assert scene.check_exact().windows
        once = scene.rows()

        with pytest.raises(PenstockError, match=r"(?i)accept.duplicates"):
            scene.submit(from_uri=uri)
        assert len(scene.rows()) == len(once), "a refused start has published"

        scene.submit(from_uri=uri, accept_duplicates=True)
        scene.wait_finished()
        found = scene.verdict()
        assert (found.missing, found.wrong) == (0, 0)
        assert 0 < found.duplicated < found.windows
        again = scene.rows()[:]
        counts = {}
        for row in again:
            counts[row] = counts.get(row, 0) + 1
        assert set(counts.values()) <= {1, 2}
        twice = [row[1] for row, count in counts.items() if count == 2]
        single = [row[1] for row, count in counts.items() if count == 1]
        assert max(single) <= min(twice), "what is repeated is the output after the savepoint, and nothing else"
        assert "accept" in " ".join(entry["text"] for entry in scene.story()).lower()


def test_stop_with_savepoint_and_on_from_it_is_exact(stage, shared):
    with Scene(stage, Orders(12, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        uri = scene.stop()
        scene.submit(from_uri=uri)
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()


def test_fresh_starts_a_new_history(stage, shared):
    """Everything is computed anew and published anew: what the first history published is there twice."""
    with Scene(stage, Orders(13, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_rows()
        scene.cancel()
        before = scene.rows()
        scene.feed.join()
        scene.submit(fresh=True)
        scene.wait_finished()
        found = scene.verdict()
        assert (found.missing, found.wrong, found.duplicated) == (0, 0, len(before))


def test_canceled_and_submitted_again_it_resumes_exactly(stage, shared):
    with Scene(stage, Orders(14, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_checkpoints(3)
        scene.cancel()
        scene.submit()
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()


def test_the_same_savepoint_is_claimed_once(stage, shared):
    """The second claim is refused while the first runs, and afterwards too."""
    with Scene(stage, Orders(15, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        uri = scene.stop(native=True)
        first = scene.submit(from_uri=uri)
        scene.wait_checkpoints(1)
        with pytest.raises(PenstockError) as while_running:
            scene.submit(from_uri=uri)
        assert scene.name in str(while_running.value)
        scene.job_id = first
        scene.feed.join()
        scene.wait_finished()
        with pytest.raises(PenstockError, match=r"(?i)accept.duplicates"):
            scene.submit(from_uri=uri)
        scene.check_exact()


def test_a_claim_under_another_name_is_refused_once_the_origin_went_on(stage, shared):
    with Scene(stage, Orders(18, EVENTS), cluster=shared, rate=RATE) as scene:
        scene.begin()
        scene.wait_rows()
        uri = scene.savepoint()
        scene.feed.join()
        scene.wait_finished()
        with pytest.raises(PenstockError, match=r"(?i)accept.duplicates"):
            scene.submit(job=scene.with_job(name=stage.fresh("heir")), from_uri=uri)
        scene.check_exact()


def test_a_fork_beside_its_running_origin(stage, shared):
    """Both are exact: the origin as if nothing had happened, the fork from the savepoint on."""
    with Scene(stage, Orders(16, EVENTS), cluster=shared, rate=RATE) as scene:
        origin = scene.begin()
        scene.wait_rows()
        uri = scene.savepoint(native=True)
        forked = stage.fresh("forked")
        create_topics(stage.bootstrap, **{forked: 2})
        fork = scene.submit(job=scene.with_job(name=stage.fresh("fork"), sink=forked), from_uri=uri, claim=False)
        assert fork != origin
        scene.feed.join()
        scene.wait_finished()
        scene.job_id = origin
        scene.wait_finished()
        scene.check_exact()
        rows = scene.rows(forked)
        found = verdict(scene.orders, rows)
        assert (found.duplicated, found.wrong) == (0, 0)
        expected = scene.orders.windows()
        first = min(starts(rows))
        assert min(start for _, start in expected) < first, "the savepoint was before any output: nothing is shown"
        missing = set(expected) - {(row[0], row[1]) for row in rows}
        assert all(start < first for _, start in missing), "the fork lacks output from after the savepoint"


@pytest.mark.parametrize("checkpoints", [15, pytest.param(50, marks=pytest.mark.nightly)])
def test_the_broker_is_away_for_many_checkpoints_and_then_the_worker_dies(stage, shared, checkpoints):
    """Checkpoints go on, the pending output grows in the store, and all of it is published once in the end."""
    own = start_kafka(stage.folder / "own-kafka")
    job = {"sink_bootstrap": own.bootstrap, "interval": "150ms", "window_ms": 200}
    try:
        with Scene(stage, Orders(17, 30_000), cluster=shared, rate=1_500, job=job) as scene:
            create_topics(own.bootstrap, **{scene.sink: 2})
            scene.begin()
            scene.wait_checkpoints(3)
            own.kill()
            scene.wait_checkpoints(scene.completed() + checkpoints)
            pending = [e for e in scene.manifests() if e["kind"] == "checkpoint"][-1]["pending"]
            assert len({c["checkpoint_id"] for c in pending}) >= checkpoints * 2 // 5, "the pending output did not grow"
            scene.look_at_workers()
            scene.kill(scene.victim_pid("worker"))
            own.restart()
            scene.feed.join()
            scene.wait_finished()
            scene.check_exact()
    finally:
        own.remove()
