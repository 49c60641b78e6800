"""Segments of a few rows a row group, all read by ranges: remote state in small."""

from tests.support.sizes import sized

#: Fetched state beyond which it is dropped: at once, after some regions, never.
LOCAL_BYTES = (1, 1 << 31, 1 << 50)


def small_pieces():
    """Use such sizes within a block."""
    return sized(
        group_rows=3,
        whole_file_bytes=0,
        run_bytes=600,
        regions=4,
        fetched_pieces=2,
        fetched_rows=6,
        prefetched_rows=3,
        few_rows=2,
        many_pieces=1,
        region_file_bytes=1 << 13,
    )


def part(data, file):
    """The bytes a reference names."""
    return data[file.offset : file.offset + file.length] if file.length else data


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
