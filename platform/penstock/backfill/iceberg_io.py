"""Reads the files of an Iceberg table's metadata through penstock's stores, so that S3 is configured once.

Used by `iceberg` for tables that no catalog opens. pyiceberg's interface also has writes, which are refused.
"""

from __future__ import annotations

from io import BytesIO
from typing import NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from penstock.backfill.table_files import file_at
from penstock.checkpoint.stores import open_store
from penstock.core.errors import UsageError


class StoreInput(InputFile):
    """One file: a list of manifests, or a manifest."""

    def __init__(self, location: str) -> None:
        """Take the file's name from the table."""
        super().__init__(location)
        self._file = file_at(location, 0)
        self._store = open_store(self._file.root)

    def __len__(self) -> int:
        return self._store.size(self._file.key)

    def exists(self) -> bool:
        """Return whether the file exists."""
        try:
            return len(self) >= 0
        except FileNotFoundError:
            return False

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - all of it is in memory
        """Return its bytes; raises FileNotFoundError."""
        return BytesIO(self._store.read(self._file.key))


class StoreIO(FileIO):
    """All files of a table, read-only."""

    def new_input(self, location: str) -> StoreInput:
        """Return one file."""
        return StoreInput(location)

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        return _refuse(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse to delete."""
        _refuse(location if isinstance(location, str) else location.location)


def _refuse(location: str) -> NoReturn:
    raise UsageError(
        f"penstock tried to change {location}", hint="tables are only read: this is a bug in penstock, report it"
    )
