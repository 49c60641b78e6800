"""A clock for tests of time-to-live."""


class SteppingClock:
    """Steps in both directions."""

    def __init__(self):
        self.now = 1_000_000

    def now_ms(self):
        return self.now
