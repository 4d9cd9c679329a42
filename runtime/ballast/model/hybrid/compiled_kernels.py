"""Where kernels that are compiled on this machine are kept."""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import tempfile
from pathlib import Path


def keep_compiled_kernels_in(variable: str) -> None:
    """Name a folder to the compiler that reads `variable`, unless the environment does: one below the temporary folder,
    so that the next start finds what this one compiled and nothing is kept in the home directory."""
    if variable not in os.environ:
        os.environ[variable] = str(_folder())


def _folder() -> Path:
    """Of this user's alone, since what lies in it is executed; one for the life of the process where somebody else has
    taken the name."""
    folder = Path(tempfile.gettempdir()) / f"ballast-kernels-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    own = tempfile.TemporaryDirectory(prefix="ballast-kernels-")
    atexit.register(own.cleanup)
    return Path(own.name)
