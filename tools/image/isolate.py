"""Has the Python programs of an image run isolated: no variable and no file outside the image brings code into them.

`-I` ignores every PYTHON* variable, the user's packages and the working directory; `-B` and `-u` say what the image's
variables would: write no byte code and do not buffer output.

Run by the image's own Python, with the standard library alone:  python3 isolate.py FOLDER
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
    """Whether the file is a Python program; it then starts its interpreter with FLAGS."""
    content = path.read_bytes()
    found = SHEBANG.match(content)
    if found is None:
        return False
    path.write_bytes(b"#!" + found[1] + b" " + FLAGS.encode() + b"\n" + content[found.end() :])
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
