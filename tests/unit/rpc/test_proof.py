"""Two ends that know one secret believe each other; nobody else is believed, whatever of it was heard before."""

import pytest

from penstock.core.secrets import Secret
from penstock.rpc.authentication import AuthenticationError, JobManagerEnd, TaskManagerEnd, workers_key

SECRET, OTHER = Secret("s" * 32), Secret("t" * 32)
NONCES = [bytes([n]) * 32 for n in range(1, 5)]


def ends(theirs=SECRET, ours=SECRET, nonces=NONCES):
    return TaskManagerEnd(theirs, nonces[0]), JobManagerEnd(ours, nonces[1])


@pytest.mark.parametrize("secret", [SECRET, Secret()])
def test_one_secret(secret):
    taskmanager, jobmanager = ends(secret, secret)
    jobmanager.check(taskmanager.proof(jobmanager.answer(taskmanager.greeting())))


@pytest.mark.parametrize(("theirs", "ours"), [(SECRET, OTHER), (Secret(), SECRET), (SECRET, Secret())])
def test_two_secrets(theirs, ours):
    taskmanager, jobmanager = ends(theirs, ours)
    answer = jobmanager.answer(taskmanager.greeting())
    with pytest.raises(AuthenticationError, match="a different cluster secret"):
        taskmanager.proof(answer)


def test_what_was_heard_before_proves_nothing():
    taskmanager, jobmanager = ends()
    greeting, answer = taskmanager.greeting(), jobmanager.answer(taskmanager.greeting())
    proof = taskmanager.proof(answer)
    _, later = ends(nonces=NONCES[2:])
    later.answer(greeting)
    with pytest.raises(AuthenticationError, match="does not know"):
        later.check(proof)
    again = TaskManagerEnd(SECRET, NONCES[3])
    with pytest.raises(AuthenticationError):
        again.proof(answer)


def test_a_proof_cannot_be_sent_back():
    """One that knows nothing lets the JobManager answer the challenge it was given itself."""
    _, jobmanager = ends()
    answer = jobmanager.answer(TaskManagerEnd(OTHER, NONCES[2]).greeting())
    from penstock.rpc import authentication

    mirrored = authentication._answers.decode(answer)
    with pytest.raises(AuthenticationError):
        jobmanager.check(authentication.msgspec.msgpack.encode(authentication.Proof(mirrored.proof)))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"x" * 10_000, b"\x80"])
def test_noise(data):
    taskmanager, jobmanager = ends()
    with pytest.raises(AuthenticationError):
        jobmanager.answer(data)
    jobmanager.answer(taskmanager.greeting())
    with pytest.raises(AuthenticationError):
        jobmanager.check(data)
    with pytest.raises(AuthenticationError):
        taskmanager.proof(data)
    with pytest.raises(AuthenticationError, match="nonce"):
        jobmanager.answer(TaskManagerEnd(SECRET, b"short").greeting())


def test_the_workers_of_each_job_have_a_key_of_their_own():
    keys = {workers_key(secret, job) for secret in (SECRET, OTHER) for job in ("1", "2")}
    assert len(keys) == 4
