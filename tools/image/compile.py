"""Compiles other people's packages to byte code: an image's file system is read-only when they run.

A file that is written for another Python than this one (torch holds some) is left out and named. Only an import of it
would fail, and there is none. All other trouble ends the build, as everything does in our own packages, which
`python3 -m compileall` compiles.

Run by the image's own Python, with the standard library alone:  python3 compile.py FOLDER
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
                print(f"compile: left out, its syntax is another Python's: {path}", file=sys.stderr)


def compiled(path: Path) -> bool:
    """Compile one file; False where its syntax is not this Python's."""
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
