"""What the compiled objects show each other and the world.

Objects compiled for an instruction set share no symbol with the rest.

A function that such an object defines weakly (an inline one, a template's) could be the copy that the linker keeps for
everybody; the program would then stop at an illegal instruction on a lesser machine.
"""

import subprocess
from pathlib import Path

import pytest

from ballast import _core
from ballast._core import kernels
from support.kernels.isas import FAST_ISAS

REPOSITORY = Path(__file__).parents[2]


def objects_of(isa: str) -> list[Path]:
    [*objects] = (REPOSITORY / "build").glob(f"cp*/CMakeFiles/ballast_cpu.dir/cpu/{isa}/kernels.cpp.o")
    assert objects, "the extension is built by `make setup`"
    assert kernels.usable_isas()  # and it is this build that is loaded
    return objects


@pytest.mark.parametrize("isa", FAST_ISAS)
def test_an_isa_object_defines_one_function_and_nothing_weak(isa):
    for path in objects_of(isa):
        listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
        symbols = [line.split(maxsplit=2)[1:] for line in listing.stdout.splitlines()]
        assert [name for kind, name in symbols if kind.isupper()] == [f"ballast::{isa}_kernels()"]
        assert not [name for kind, name in symbols if kind in "uvwVW"]


@pytest.mark.parametrize("isa", FAST_ISAS)
def test_an_isa_object_computes_with_what_it_is_named_after(isa):
    """Its one function gives a table of its own functions that bears its name: whoever packs for a name runs these."""
    wide, dot, tiles = "%zmm", "vpdpbusd", "tdpb"
    expected = {"avx2": set(), "avx512": {wide, dot}, "amx": {wide, dot, tiles}}[isa]
    for path in objects_of(isa):
        listing = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
        )
        assert {word for word in (wide, dot, tiles) if word in listing.stdout} == expected


def test_the_extension_exports_its_entry_alone():
    """Anything else could be taken by another extension, or from one: a C++ library linked in statically crashes so."""
    listing = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in listing.stdout.splitlines()] == ["PyInit__core"]
