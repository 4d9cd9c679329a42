"""Compile third-party packages to byte code, because an image's file system is read-only when they run.

A file for another Python version (torch has some) is left out and named. Only an import of it would fail, and nothing
imports it. Every other error ends the build, as in our own packages, which `python3 -m compileall` compiles.

The image's own Python runs it, with only the standard library:  python3 compile.py FOLDER
"""

from __future__ import annotations

import os
import py_compile
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode

FILES_A_TASK = 64


def main(folder: str) -> None:
    files = [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".py")]
    with ProcessPoolExecutor() as workers:
        for path, is_compiled in zip(files, workers.map(compiled, files, chunksize=FILES_A_TASK), strict=True):
            if not is_compiled:
                print(f"compile: left out, not valid in this Python version: {path}", file=sys.stderr)


def compiled(path: Path) -> bool:
    """Compiles one file. Returns False if its syntax is not valid in this Python version."""
    try:
        # The byte code stays valid when a builder sets all times of a layer.
        py_compile.compile(str(path), doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    except py_compile.PyCompileError as error:
        if not issubclass(error.exc_value.__class__, SyntaxError):
            raise
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
