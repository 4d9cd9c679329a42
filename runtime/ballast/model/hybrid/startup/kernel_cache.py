"""The folder in which compilers keep the kernels they compile on this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import tempfile
from pathlib import Path


def keep_compiled_kernels_in(variable: str) -> None:
    """Set the environment variable in which a compiler looks for its cache, unless it is set already.

    The folder lies below the temporary folder: the next start finds what this one compiled, and nothing is written to
    the home directory."""
    if variable not in os.environ:
        os.environ[variable] = str(_folder())


def _folder() -> Path:
    """A folder that only this user can write to, since what lies in it is executed. Where somebody else has taken the
    name, one that lives as long as the process."""
    folder = Path(tempfile.gettempdir()) / f"ballast-kernels-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    own = tempfile.TemporaryDirectory(prefix="ballast-kernels-")
    atexit.register(own.cleanup)
    return Path(own.name)
