"""State that the background fetches, as steps of a history."""


class Fetching:
    """Steps of a job with `subtasks` of (operator, store): what the background fetches, in any order with the rest."""

    def begin_fetch(self):
        self.fetching = [job for _, store in self.subtasks if (job := store.prefetch()) is not None]

    def end_fetch(self):
        for job in self.fetching:
            try:
                job.run()
            except KeyError:  # compacted and removed meanwhile
                continue
            job.install()
        self.fetching = []
