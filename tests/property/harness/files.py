"""A store of files in memory, and a cold store that is a dict."""

from penstock.core.snapshot import FileRef


def part(data, file):
    """Return the bytes that a reference names."""
    return data[file.offset : file.offset + file.length] if file.length else data


class Files:
    """Files by name."""

    def __init__(self):
        self.held, self._written = {}, 0

    def write(self, encoded):
        """Keep an encoded segment; return its reference."""
        self._written += 1
        name = str(self._written)
        self.held[name] = bytes(encoded.data)
        return FileRef(path=name, length=len(encoded.data))

    def read(self, file):
        """Return what a reference names."""
        return file.inline if file.inline is not None else part(self.held[file.path], file)

    def keep(self, snapshots, oldest):
        """Remove the files of the oldest checkpoint that the later ones do not name."""
        for path in _named(oldest) - _named(snapshots):
            del self.held[path]


def _named(snapshots):
    return {segment.file.path for snapshot in snapshots for segment in snapshot.segments if segment.file.path}


class PlainStore:
    """A cold store in a dict."""

    #: Keys written by all of them.
    written = 0

    def __init__(self):
        self.held = {}

    def put(self, keys, values):
        PlainStore.written += len(keys)
        self.held.update(zip(keys, values, strict=True))

    def get(self, keys):
        heads = [key[:16] for key in keys]  # a pane and a hash; keys of one hash are in any order
        assert heads == sorted(heads)
        return [self.held.get(key) for key in keys]

    def delete(self, keys):
        for key in keys:
            self.held.pop(key, None)

    def delete_range(self, low, high):
        for key in [key for key in self.held if low <= key < high]:
            del self.held[key]

    def scan(self, low, high, piece=3):
        found = sorted(key for key in self.held if low <= key < high)
        for first in range(0, len(found), piece):
            keys = found[first : first + piece]
            yield keys, [self.held[key] for key in keys]

    def close(self):
        self.held.clear()
