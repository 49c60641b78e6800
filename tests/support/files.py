"""Files of folders that another process writes to at the same time."""

import fnmatch
import os
from pathlib import Path


def files_below(folder, pattern="*"):
    """Return the files below a folder whose names match.

    A folder that is removed while it is read counts as empty: `Path.rglob` raises there.
    """
    found = ((where, name) for where, _, names in os.walk(folder) for name in names)
    return [Path(where, name) for where, name in found if fnmatch.fnmatchcase(name, pattern)]
