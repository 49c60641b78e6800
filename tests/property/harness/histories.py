"""Draw the steps of a job, and play them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from penstock.core.elements import MAX_TIMESTAMP

SEEDS = st.integers(0, 2**31)
#: How a checkpoint ends.
OUTCOMES = st.sampled_from(["done", "done", "done", "failed", "half", "aborted"])
#: How one ends that comes to nothing.
LOST = st.sampled_from(["failed", "half", "aborted"])


def step(name, *arguments, times=1):
    """Return a step as a list of alternatives, as often as it shall be drawn."""
    return [st.tuples(st.just(name), *arguments) for _ in range(times)]  # of the same one only one would be drawn


CHECKPOINTS = [*step("freeze"), *step("finish", OUTCOMES), *step("lose", LOST), *step("compact", st.booleans())]
#: Starts of prepared state, and how many checkpoints it had loaded before.
PREPARED = {"start_prepared": 1, "start_in_rounds": 2}
CRASHES = [one for name in ("start", *PREPARED) for one in step(name, st.integers(1, 4))]
FETCHES = [*step("begin_fetch"), *step("end_fetch")]


def operations(*steps, least=0, most=60):
    """Return histories of these steps, and of checkpoints, compactions, fetches, crashes and rescales."""
    return st.lists(
        st.one_of(*(one for more in steps for one in more), *CHECKPOINTS, *FETCHES, *CRASHES),
        min_size=least,
        max_size=most,
    )


def play(history, steps, job):
    """Do what a history says: a step of the model file, else of the job."""

    def do(name, *arguments):
        (getattr(steps, name, None) or getattr(job, name))(*arguments)

    for name, *arguments in history:
        if name == "lose":  # what it froze waits for the next one
            do("freeze")
            do("finish", *arguments)
        elif name in PREPARED:
            job.prepares = PREPARED[name]
            do("start", *arguments)
        else:
            do(name, *arguments)


@dataclass
class Pace:
    """Event time of a history: it goes on with each batch, and watermarks come some way after it."""

    #: How far a batch takes it; how far before it rows and watermarks are.
    every: int
    rows: int
    marks: int
    now: int = 0

    def batch(self):
        """Return the time around which the rows of the next batch lie."""
        self.now += self.every
        return self.now - self.rows

    def mark(self, further, last):
        """Return a watermark that is not before the last one."""
        return max(last, self.now - self.marks + further, -400)


def end(job, steps):
    """Let the end of time come."""
    for subtask in range(len(job.subtasks)):
        steps.mark(subtask, MAX_TIMESTAMP)
