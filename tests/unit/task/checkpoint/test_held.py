"""A checkpoint of a run on trial is complete for everybody but the sinks whose output is held."""

from penstock.core.permits import CommitPermit
from penstock.rpc.messages import CheckpointCompleted


def test_a_sink_whose_output_is_held_is_not_told(world):
    w = world()
    w.deploy()
    w.settle()
    uid = "sink"
    for number, held in ((1, (uid,)), (2, ("another",))):
        permit = CommitPermit(job_id="job", run_id="run", generation=1, checkpoint_id=number, manifest_sequence=number)
        w.broadcast(CheckpointCompleted(permit=permit, held=held))
        w.settle()
    assert [x for x in w.sink.seen if x[0] == "complete"] == [("complete", 2)]
