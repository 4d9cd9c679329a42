"""The objects of a build that are compiled with the options of an instruction set, and the symbols that they define.

The linker keeps one copy of a weak function (an inline function, an instance of a template). If it keeps the copy of an
object for AVX-512, the program stops with an illegal instruction on a CPU without AVX-512. So these objects may define
no weak symbol, and no global one but their entry point.

As a program, this checks every object of one build folder; each build of the C++ tests runs it as a test.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ENTRY_POINT = re.compile(r"ballast::\w+_kernels\(\)")


def isa_objects(build: Path) -> list[Path]:
    """The built objects of a CMake build whose command has machine options (-m…) that not all of its commands have."""
    options: dict[Path, set[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        output = Path(entry["directory"], words[words.index("-o") + 1])
        options[output] = {word for word in words if word.startswith("-m")}
    baseline = set.intersection(*options.values())
    return [path for path, used in options.items() if used > baseline and path.exists()]


def shared_symbols(path: Path) -> list[str]:
    """The weak and global symbols that an object defines, apart from its one entry point."""
    command = ["nm", "--demangle", "--defined-only", str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = [line.split(maxsplit=2)[1:] for line in listing.splitlines() if line]
    shared = [(kind, name) for kind, name in symbols if kind.isupper() or kind in "uvw"]
    entry = next((symbol for symbol in shared if symbol[0] == "T" and ENTRY_POINT.fullmatch(symbol[1])), None)
    return [name for kind, name in shared if (kind, name) != entry]


def main(build: Path) -> int:
    objects = isa_objects(build)
    if not objects:
        print(f"{build} has no object that is compiled for an instruction set", file=sys.stderr)
        return 1
    failed = False
    for path in objects:
        for symbol in shared_symbols(path):
            failed = True
            print(
                f"{path.relative_to(build)} defines {symbol}; write it in BALLAST_ISA_NAMESPACE "
                "(csrc/cpu/isa_namespace.h), or do without it",
                file=sys.stderr,
            )
    print(f"{len(objects)} objects checked")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
