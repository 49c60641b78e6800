"""Segments of a few rows a row group, all read by ranges: remote state in small."""

import contextlib
from unittest import mock

from penstock.state import remote, remote_keys, remote_runs, remote_timers, segment_file, segments

#: Fetched state beyond which it is dropped: at once, after some regions, never.
LOCAL_BYTES = (1, 1 << 31, 1 << 50)


@contextlib.contextmanager
def small_pieces():
    with (
        mock.patch.object(segments, "ROW_GROUP", 3),
        mock.patch.object(remote, "ROW_GROUP", 3),
        mock.patch.object(remote, "_TOGETHER", 2),
        mock.patch.object(remote_keys, "ROW_GROUP", 3),
        mock.patch.object(remote_keys, "_ROWS", 6),
        mock.patch.object(remote_keys, "_ROWS_BEHIND", 3),
        mock.patch.object(remote_runs, "ROW_GROUP", 3),
        mock.patch.object(remote_runs, "REGIONS", 4),
        mock.patch.object(remote_runs, "_ROWS", 6),
        mock.patch.object(remote_runs, "_ROWS_BEHIND", 3),
        mock.patch.object(remote_runs, "_FILE", 1 << 13),
        mock.patch.object(remote_timers, "_ROWS", 6),
        mock.patch.object(remote, "_FEW_ROWS", 2),
        mock.patch.object(remote, "_MANY_PIECES", 1),
        mock.patch.object(segment_file, "WHOLE_BYTES", 0),
        mock.patch.object(segment_file, "RUN_BYTES", 600),
    ):
        yield


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
