"""The folder of kernels and measurements that earlier starts on this machine have made."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def keep_compiled_kernels_in(variable: str) -> None:
    """Set a compiler's environment variable for its cache, unless it is set to a writable folder.

    The folder is below the temporary folder: the next start finds the compiled kernels, and nothing is written to the
    home directory. If the volume is read-only or belongs to another user, kernels are compiled again, and the start
    continues."""
    named = os.environ.get(variable)
    if named and (reason := _why_not_writable(Path(named))) is None:
        return
    os.environ[variable] = str(_folder())
    if named:
        log.warning(
            "compiled kernels are not kept in the requested folder",
            extra={"variable": variable, "requested": named, "reason": reason, "used": os.environ[variable]},
        )


def keep_machine_code_only() -> None:
    """Let Triton keep nothing of a kernel but its machine code, unless the environment says otherwise. Intermediate
    code is larger, and a start would read it, too, without using it."""
    os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")


def measurements_folder() -> Path:
    """The folder for measurements: inside the folder of compiled kernels, so that one volume keeps both. Raises OSError
    if no folder is writable."""
    keep_compiled_kernels_in("FLASHINFER_WORKSPACE_BASE")
    return Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "measurements")


def _why_not_writable(folder: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _folder() -> Path:
    """A folder that only this user can write to, because its files are executed. If another user owns the path, a
    temporary folder that exists as long as the process."""
    folder = Path(tempfile.gettempdir()) / f"ballast-kernels-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    own = tempfile.TemporaryDirectory(prefix="ballast-kernels-")
    atexit.register(own.cleanup)
    return Path(own.name)
