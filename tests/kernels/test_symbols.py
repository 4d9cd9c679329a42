"""The symbols of the compiled objects: objects for an instruction set share no function, and the extension exports one
name. The builds of the C++ tests check their own objects in the same way (isa_objects in tests/cpp)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ballast import _core
from ballast._core import kernels
from devkit.kernels import isa_objects
from devkit.kernels.isas import FAST_ISAS

REPOSITORY = Path(__file__).parents[2]


def builds() -> list[Path]:
    [*found] = (REPOSITORY / "build").glob("cp*")
    assert found, "the extension is built by `make setup`"
    assert kernels.usable_isas()  # and it is this build that is loaded
    return found


def objects_of(isa: str) -> list[Path]:
    return [build / f"CMakeFiles/ballast_cpu.dir/cpu/{isa}/kernels.cpp.o" for build in builds()]


@pytest.mark.parametrize("isa", FAST_ISAS)
def test_an_isa_object_defines_its_entry_point_and_nothing_weak(isa):
    for path in objects_of(isa):
        listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
        symbols = [line.split(maxsplit=2)[1:] for line in listing.stdout.splitlines()]
        assert [name for kind, name in symbols if kind.isupper()] == [f"ballast::{isa}_kernels()"]
        assert isa_objects.shared_symbols(path) == []


def test_every_isa_object_of_a_build_is_checked():
    for build in builds():
        objects = {path for path in isa_objects.isa_objects(build) if "tests" not in path.parts}
        assert objects == {build / f"CMakeFiles/ballast_cpu.dir/cpu/{isa}/kernels.cpp.o" for isa in FAST_ISAS}


SHARED = {
    "inline int twice(int n) { return 2 * n; } const void* ballast::a_kernels() { return (void*)twice; }": "twice(int)",
    "template <class T> T twice(T n) { return 2 * n; } "
    "const void* ballast::a_kernels() { return (void*)twice<int>; }": "int twice<int>(int)",
    "struct Pair { int a; int sum() const { return a; } }; "
    "const void* ballast::a_kernels() { static int sum = Pair{1}.sum(); return &sum; }": "Pair::sum() const",
    "int twice(int n) { return 2 * n; }": "twice(int)",
    "const void* ballast::a_kernels() { return 0; } const void* ballast::b_kernels() { return 0; }": (
        "ballast::b_kernels()"
    ),
}


@pytest.mark.parametrize(("source", "symbol"), SHARED.items(), ids=SHARED.values())
def test_a_function_shared_by_isa_objects_is_detected(tmp_path, source, symbol):
    head = "namespace ballast { const void* a_kernels(); const void* b_kernels(); }\n"
    for name, text in {"isa": head + source, "rest": ""}.items():
        (tmp_path / f"{name}.cpp").write_text(text)
    compiler = os.environ.get("CXX", "c++")
    commands = {
        "isa": f"{compiler} -O0 -mavx2 -c isa.cpp -o isa.o",
        "rest": f"{compiler} -O0 -c rest.cpp -o rest.o",
    }
    for command in commands.values():
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    entries = [{"directory": str(tmp_path), "command": command} for command in commands.values()]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    checked = subprocess.run(
        [sys.executable, isa_objects.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1
    assert f"isa.o defines {symbol}" in checked.stderr


@pytest.mark.parametrize("isa", FAST_ISAS)
def test_an_isa_object_uses_the_instructions_of_its_name(isa):
    """Its only function returns a table of its own functions under its name, so packing for a name runs these."""
    wide, dot, tiles = "%zmm", "vpdpbusd", "tdpb"
    expected = {"avx2": set(), "avx512": {wide, dot}, "amx": {wide, dot, tiles}}[isa]
    for path in objects_of(isa):
        listing = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
        )
        assert {word for word in (wide, dot, tiles) if word in listing.stdout} == expected


def test_the_extension_exports_only_its_entry_point():
    """Anything else could be taken by another extension, or from one: a C++ library linked in statically crashes so."""
    listing = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in listing.stdout.splitlines()] == ["PyInit__core"]
