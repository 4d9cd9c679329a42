"""Write the pages of benchmarks, their charts and the README's table from benchmarks/results.

    python -m tools.benchmarks [--check]

With --check nothing is written. The exit code says whether the files are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.benchmarks.page import CHARTS, files, with_speed
from tools.benchmarks.questions import HIGHLIGHTS, PAGES
from tools.pages import is_file_with

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    readme = Path("README.md")
    expected = dict(files(PAGES))
    expected[readme] = with_speed((ROOT / readme).read_text(encoding="utf-8"), HIGHLIGHTS)
    old = [path for path, text in expected.items() if not is_file_with(ROOT / path, text)]
    stale = [path for path in (ROOT / CHARTS).glob("*.svg") if path.relative_to(ROOT) not in expected]
    if arguments == ["--check"]:
        names = [str(path) for path in (*old, *(path.relative_to(ROOT) for path in stale))]
        if names:
            print(f"{', '.join(names)}: out of date with benchmarks/results; run: make docs-reference")
        return 1 if names else 0
    for path in old:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(expected[path], encoding="utf-8")
    for path in stale:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
