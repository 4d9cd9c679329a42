"""csrc/cpu/simd.md lists exactly the names that each simd.h defines for the shared kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CPU = Path(__file__).parents[2] / "csrc/cpu"
COMMENT = re.compile(r"//.*")
DEFINITION = re.compile(
    r"^(?:BALLAST_INLINE|constexpr|void) (?:[\w:&*]+ )*?(\w+)(?=\(| = |;)"
    r"|^using (\w+) =|^typedef .*?\b(\w+) __attribute__|^struct (\w+) \{|^#define (\w+)",
    re.MULTILINE,
)
PACKING = ("avx2", "avx512")


def source(*paths: Path) -> str:
    """The code of these files, without comments."""
    return COMMENT.sub("", "\n".join(path.read_text(encoding="utf-8") for path in paths))


def defined(code: str) -> set[str]:
    """The names that a simd.h defines."""
    return {next(filter(None, names)) for names in DEFINITION.findall(code)}


def listed() -> dict[str, set[str]]:
    """Section of simd.md → the names in its table."""
    text = (CPU / "simd.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    rows = {section.splitlines()[0]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in sections}
    assert all(len(names) == len(set(names)) for names in rows.values()), "a name is listed twice"
    return {title: set(names) for title, names in rows.items()}


def used(names: set[str]) -> set[str]:
    """The names that the shared kernels use."""
    kernels = source(*(CPU / "panels").glob("*.h"), *(CPU / "shared").glob("*.h"))
    return names & set(re.findall(r"\w+", kernels))


LISTED = listed()
ALL, PACKED, OPTIONAL = (LISTED[title] for title in LISTED)


@pytest.mark.parametrize("isa", ["reference", *PACKING])
def test_an_instruction_set_defines_the_listed_operations(isa: str) -> None:
    names = defined(source(CPU / isa / "simd.h"))
    required = ALL | PACKED if isa in PACKING else ALL
    assert required - names == set()
    assert used(names) - required - OPTIONAL == set(), "kernels use a name that is not listed"


def test_every_listed_name_is_used() -> None:
    assert list(LISTED) == ["All instruction sets", "Instruction sets that pack weights", "Optional"]
    names = ALL | PACKED | OPTIONAL
    assert names - used(names) == set()
    optional = {isa: OPTIONAL & defined(source(CPU / isa / "simd.h")) for isa in PACKING}
    assert OPTIONAL - optional["avx2"] == set()
    assert optional["avx512"] < OPTIONAL, "a name defined for all instruction sets is not optional"


def test_definitions_are_found() -> None:
    code = """#define MACRO inline
using Bytes = __m256i;
typedef int64_t Longs __attribute__((vector_size(32)));
struct Codes {
  int member;
};
constexpr int kRows = 8;
template <int kShift>
BALLAST_INLINE Bytes shift(Bytes a) {
  const Bytes local = a;
  return local;
}
constexpr bool is_signed(const QuantLayout& layout) { return true; }
template <bool kSigned>
void add_in_words(Bytes& sum, Bytes quad);
BALLAST_INLINE void store(float* to, Floats a) {}
BALLAST_INLINE const uint8_t* address(int row) { return nullptr; }
"""
    names = {"MACRO", "Bytes", "Longs", "Codes", "kRows", "shift", "is_signed", "add_in_words", "store", "address"}
    assert defined(code) == names
