"""Writes the code books of GGUF's IQ types as a C++ header, from the gguf package: make_grids.py HEADER.

A code of a type with a grid is the number of a point of eight or four weights. A point is written as the levels of its
coordinates: two bits per weight for points of eight, four bits for points of four, the first weight in the lowest bits.
CMake runs this program.
"""

import sys
from pathlib import Path

import numpy as np
from gguf import quants


def main() -> None:
    header = Path(sys.argv[1])
    check_signs()
    grids = (quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ1_S, quants.IQ3_XXS, quants.IQ3_S)
    text = "\n".join(
        [
            "// Made by csrc/cpu/make_grids.py from the gguf package: do not edit.",
            "#pragma once",
            "",
            "#include <cstdint>",
            "",
            "namespace ballast {",
            "",
            *(line for grid in grids for line in grid_lines(grid)),
            "}  // namespace ballast",
            "",
        ]
    )
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)


def check_signs() -> None:
    """Seven bits of signs stand for eight: the eighth makes their number even. Kernels count it."""
    expected = bytes(bits | (bits.bit_count() & 1) << 7 for bits in range(128))
    if expected != quants.IQ2_XXS.ksigns:
        raise SystemExit("make_grids.py: the gguf package has another table of signs than the kernels compute")


def grid_lines(kind: type) -> list[str]:
    """The points of a grid and the levels that they are made of."""
    kind.init_grid()
    points, weights = kind.grid_shape
    levels = np.array(kind.grid_map, np.int64)
    coordinates = np.asarray(kind.grid).reshape(points, weights).astype(np.int64)
    numbers = (coordinates[..., None] == levels).argmax(axis=-1)
    if not np.array_equal(levels[numbers], coordinates):
        raise SystemExit(f"make_grids.py: {kind.__name__} of the gguf package has points that are not on its levels")
    codes = (numbers << np.arange(weights) * (16 // weights)).sum(axis=-1)
    name = f"{points}x{weights}"
    rows = [", ".join(str(code) for code in codes[begin : begin + 16]) for begin in range(0, points, 16)]
    return [
        f"static constexpr int8_t kLevels{name}[] = {{{', '.join(str(level) for level in levels)}}};",
        f"static constexpr uint16_t kPoints{name}[] = {{",
        *(f"    {row}," for row in rows),
        "};",
        "",
    ]


if __name__ == "__main__":
    main()
