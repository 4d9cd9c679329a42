"""Isolate the Python programs of an image: no variable and no file outside the image can add code to them.

`-I` ignores every PYTHON* variable, the user's packages and the working directory. `-B` and `-u` replace the image's
variables: write no byte code, and do not buffer output.

The image's own Python runs it, with only the standard library:  python3 isolate.py FOLDER
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FLAGS = "-IBu"
SHEBANG = re.compile(rb"#!(\S*/python[0-9.]*)\n")


def main(folder: str) -> None:
    changed = [path for path in sorted(Path(folder).iterdir()) if path.is_file() and isolated(path)]
    if not changed:
        sys.exit(f"isolate: {folder} holds no Python program")


def isolated(path: Path) -> bool:
    """Whether the file is a Python program. If so, it now starts its interpreter with FLAGS."""
    content = path.read_bytes()
    found = SHEBANG.match(content)
    if found is None:
        return False
    path.write_bytes(b"#!" + found[1] + b" " + FLAGS.encode() + b"\n" + content[found.end() :])
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
