"""Questions to running subtasks: bounded in time and number, sent to whose the key is, answered or clearly not."""

import asyncio

import pytest
from tests.support.waiting import DEADLINE_S

from penstock.config.settings import JobSettings
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.core.keygroup import HASH_MAX, first_hash_of, key_group_of, key_groups_of, subtask_of
from penstock.jobmanager.cluster.taskmanagers import WorkerAddress, WorkerQueries
from penstock.jobmanager.messages.views import JobDetail, JobSummary, OperatorView, SubtaskView, VertexView
from penstock.jobmanager.observe.live_state import KeyPage, StateKey, hot_keys_of, keys_of, states_of, value_of
from penstock.rpc.messages import AskSubtask, SubtaskAnswer

JOB = "1" * 32


def job(state="RUNNING", subtasks=("RUNNING", "RUNNING", "RUNNING")):
    summary = JobSummary(
        job_id=JOB,
        name="live",
        state=state,
        run_id="r",
        start_ms=5,
        end_ms=-1,
        last_modified_ms=6,
        tasks={},
        restarts=0,
    )
    views = tuple(
        SubtaskView(subtask=n, state=s, attempt=1, worker_id=f"w{n}", taskmanager_id="tm")
        for n, s in enumerate(subtasks)
    )
    vertex = VertexView(
        id="v", name="v", parallelism=len(views), max_parallelism=64, state="RUNNING", subtasks=views,
        operators=(OperatorView(uid="totals", name="totals", kind="window_aggregate"),),
    )  # fmt: skip
    return JobDetail(summary=summary, vertices=(vertex,), edges=(), settings=JobSettings(), timestamps={})


class Cluster:
    """Subtasks that answer at once by a function of their number, or not at all."""

    def __init__(self, reply):
        self.reply, self.asked = reply, []
        self.queries = WorkerQueries(self.send, deadline_s=0.05)

    def send(self, taskmanager_id, worker_ids, command):
        assert taskmanager_id == "tm"
        assert worker_ids == (f"w{command.subtask}",)
        self.asked.append(command.subtask)
        found = self.reply(command)
        if found is not None:
            self.queries.answered(SubtaskAnswer(job_id=command.job_id, request_id=command.request_id, **found))


def ask(cluster, key=("7",), uid="totals", most=10, detail=None):
    asked = StateKey(uid, "panes", tuple(key), most)
    return asyncio.run(value_of(detail or job(), asked, cluster.queries))


def owned_by(owner, rows):
    place = {"key": {"k": 7}, "key-group": 9, "subtask": owner}
    return lambda command: {"answer": place | ({"rows": rows} if command.subtask == owner else {})}


@pytest.mark.parametrize(("owner", "asked"), [(0, [0]), (2, [0, 2])])
def test_the_first_subtask_says_whose_the_key_is(owner, asked):
    cluster = Cluster(owned_by(owner, [{"total": 3}]))
    found = ask(cluster)
    assert cluster.asked == asked
    assert found["rows"] == [{"total": 3}]
    assert (found["uid"], found["name"], found["consistency"]) == ("totals", "panes", "read-uncommitted")


def test_a_key_that_moves_all_the_time_is_no_key_that_holds_nothing():
    place = {"key": {"k": 7}, "key-group": 9}
    cluster = Cluster(lambda command: {"answer": {**place, "subtask": (command.subtask + 1) % 3}})
    with pytest.raises(PenstockError, match=r"moved to another subtask.*try again") as raised:
        ask(cluster)
    assert not isinstance(raised.value, NotFoundError)


def test_a_key_that_holds_nothing_is_not_found():
    with pytest.raises(NotFoundError, match="state 'panes' of 'totals' has no rows of the key"):
        ask(Cluster(owned_by(1, [])))


def test_an_unknown_operator_is_not_found_and_nobody_asked():
    cluster = Cluster(owned_by(0, []))
    with pytest.raises(
        NotFoundError, match=r"no operator with uid 'total' \(did you mean 'totals'\?\)|no operator with uid"
    ):
        ask(cluster, uid="total")
    assert cluster.asked == []


@pytest.mark.parametrize("detail", [job("RESTARTING"), job("FINISHED"), job(subtasks=("RUNNING", "DEPLOYING"))])
def test_a_job_that_does_not_run_is_said_so_and_nobody_asked(detail):
    cluster = Cluster(owned_by(0, []))
    with pytest.raises(UsageError, match=r"job 'live' .* is .*only a running job has live state"):
        ask(cluster, detail=detail)
    with pytest.raises(UsageError):
        asyncio.run(states_of(detail, cluster.queries))
    assert cluster.asked == []


@pytest.mark.parametrize(("key", "most"), [((), 10), (("7",), 0), (("7",), 10_001)])
def test_a_question_without_key_or_bounds_is_refused(key, most):
    with pytest.raises(UsageError):
        ask(Cluster(owned_by(0, [])), key=key, most=most)


@pytest.mark.parametrize(("kind", "error"), [("not-found", NotFoundError), ("usage", UsageError), ("", PenstockError)])
def test_what_the_subtask_refuses_is_the_answer(kind, error):
    with pytest.raises(error, match=r"^no such thing$") as raised:
        ask(Cluster(lambda _: {"error": "no such thing", "kind": kind}))
    assert type(raised.value) is error


def test_a_subtask_that_says_nothing_is_waited_for_no_longer_than_the_deadline():
    cluster = Cluster(lambda _: None)
    with pytest.raises(PenstockError, match="subtask 0 did not answer within"):
        ask(cluster)
    assert cluster.queries._open == {}
    cluster.queries.answered(SubtaskAnswer(job_id=JOB, request_id="1"))  # too late: nobody waits


def test_a_lost_worker_ends_the_wait_at_once():
    async def run():
        found = WorkerQueries(lambda *_: None, deadline_s=60)
        asking = asyncio.create_task(found.ask(WorkerAddress("tm", "w0"), query(0)))
        other = asyncio.create_task(found.ask(WorkerAddress("tm", "w1"), query(1)))
        await asyncio.sleep(0)
        found.lost("w0")
        with pytest.raises(PenstockError, match="worker w0 was lost during the query"):
            await asyncio.wait_for(asking, DEADLINE_S)
        assert not other.done()
        other.cancel()

    asyncio.run(run())


def query(subtask):
    return AskSubtask(job_id=JOB, request_id="", vertex_id="v", subtask=subtask, what="states")


def test_too_many_questions_at_once_are_refused():
    async def run():
        found = WorkerQueries(lambda *_: None, deadline_s=0.05, max_open=2)
        asking = [found.ask(WorkerAddress("tm", f"w{n}"), query(n)) for n in range(3)]
        return await asyncio.gather(*asking, return_exceptions=True)

    errors = [str(error) for error in asyncio.run(run())]
    assert "2 queries to running jobs are already open" in errors[2]
    assert all("did not answer" in error for error in errors[:2])


def test_states_are_added_up_over_subtasks():
    def listing(command):
        part = {
            "uid": "totals", "name": "panes", "key": ["k int64"], "schema": [], "subtask": command.subtask,
            "key-groups": [command.subtask, command.subtask], "rows": 10 + command.subtask, "bytes": 100,
            "largest-groups": [], "rows-by-group": {"groups": 1, "rows": []},
        }  # fmt: skip
        return {"answer": {"states": [part]}}

    (state,) = asyncio.run(states_of(job(), Cluster(listing).queries))["states"]
    assert (state["rows"], state["bytes"], state["title"]) == (33, 300, "windows")
    assert [part["subtask"] for part in state["subtasks"]] == [0, 1, 2]
    assert "uid" not in state["subtasks"][0]


#: One key in every tenth key group, at its first hash.
GROUPS = JobSettings().key_groups
HELD = [first_hash_of(group, GROUPS) for group in range(0, GROUPS, 10)]


def browsed(cluster, **asked):
    return asyncio.run(keys_of(job(), KeyPage("totals", "panes", **asked), cluster.queries))


def holds(command):
    """What a subtask answers that has those of `HELD` which are its own."""
    low, high = command.between
    own = key_groups_of(command.subtask, 3, GROUPS)
    mine = [h for h in HELD if key_group_of(h, GROUPS) in own and low <= h <= high]
    shown = [{"key": {"k": h}, "key-group": key_group_of(h, GROUPS), "rows": 1} for h in mine[: command.most]]
    return {"answer": {"keys": shown, "next": mine[command.most - 1] if len(mine) > command.most else None}}


@pytest.mark.parametrize("most", [1, 7, 35, 1000])
def test_keys_are_browsed_page_by_page_over_all_subtasks(most):
    cluster, found, after = Cluster(holds), [], None
    while True:
        page = browsed(cluster, most=most, after=after)
        assert len(page["keys"]) <= most
        found += page["keys"]
        if page["next"] is None:
            break
        assert page["keys"], "or nothing would be gained by asking on"
        after = int(page["next"])
    assert [key["key"]["k"] for key in found] == HELD
    assert [key["subtask"] for key in found] == [subtask_of(key["key-group"], 3, GROUPS) for key in found]
    assert len(cluster.asked) <= len(HELD) // most + 4, "subtasks that are done with are not asked again"


def test_keys_of_one_key_group_are_asked_of_its_subtask_alone():
    cluster = Cluster(holds)
    (key,) = browsed(cluster, key_group=500)["keys"]
    assert (key["key-group"], cluster.asked) == (500, [1])
    assert browsed(cluster, key_group=501) == {"uid": "totals", "name": "panes", "keys": [], "next": None}


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"most": 0}, "limit 0 is not between 1 and 1000"),
        ({"most": 1001}, "limit 1001"),
        ({"key_group": GROUPS}, f"there is no key group {GROUPS}"),
        ({"key_group": -1}, "there is no key group -1"),
        ({"after": HASH_MAX + 1}, "is no hash in this range"),
        ({"key_group": 3, "after": 0}, "is no hash in this range"),
    ],
)
def test_keys_that_cannot_be(asked, error):
    cluster = Cluster(holds)
    with pytest.raises(UsageError, match=error):
        browsed(cluster, **asked)
    assert cluster.asked == []


def test_hot_keys_are_those_of_all_subtasks_with_their_share_of_all_rows():
    def hot(command):
        rows = [100.0, 300.0, 600.0][command.subtask]
        keys = [{"key": {"k": command.subtask}, "rows": rows / 2}]
        part = {"uid": "totals", "subtask": command.subtask, "rows": rows, "error": 0.0, "keys": keys}
        return {"answer": {"hot-keys": [part]}}

    (found,) = asyncio.run(hot_keys_of(job(), Cluster(hot).queries))["operators"]
    assert found["rows"] == 1000.0
    assert [(key["key"]["k"], key["share"], key["subtask"]) for key in found["keys"]] == [
        (2, 0.3, 2), (1, 0.15, 1), (0, 0.05, 0),
    ]  # fmt: skip
