"""Segments of a few rows a row group, all read by ranges: remote state in small."""

from tests.support.sizes import sized

from penstock.state.limits import StateLimits

#: Fetched state beyond which it is dropped: at once, after some regions, never.
LOCAL_BYTES = (1, 1 << 31, 1 << 50)


#: The sizes that decide how much one read of remote state fetches.
_SIZES = (
    *("group_rows", "whole_file_bytes", "run_bytes", "regions", "fetched_pieces"),
    *("fetched_rows", "prefetched_rows", "few_rows", "many_pieces", "region_file_bytes"),
)


def small_pieces():
    """Use the tiny ones of these sizes within a block."""
    tiny = StateLimits.tiny()
    return sized(**{name: getattr(tiny, name) for name in _SIZES})


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
