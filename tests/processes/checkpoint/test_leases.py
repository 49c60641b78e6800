"""The lease of a process that is gone."""

import os
import subprocess
import sys

import pytest
from tests.unit.checkpoint.test_leases import holder

from penstock.checkpoint.job_lease import JobLease, this_process
from penstock.core.errors import JobIdentityError


def test_a_dead_process_of_this_machine_holds_nothing(store, clock):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    machine = this_process("x").machine
    JobLease(store, holder("one", pid=int(dead.stdout), machine=machine), clock).acquire("j")
    taken = JobLease(store, holder("two", pid=os.getpid(), machine=machine), clock)
    assert taken.acquire("j").generation == 2
    with pytest.raises(JobIdentityError):
        JobLease(store, holder("three", pid=1, machine=machine), clock).acquire("j")
