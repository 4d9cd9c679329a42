"""YAML from untrusted files: plain values, or an error that names the position."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast.documents.small_file import DocumentError
from ballast.documents.yaml_document import Plain, read_yaml


def read(tmp_path: Path, content: str | bytes) -> Plain:
    file = tmp_path / "file.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(file)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("", None),
        ("# nothing\n---\n...\n", None),
        ("text", "text"),
        ("[1, -2, 0x10, 010, 1_000, 1:30]", [1, -2, 16, 8, 1000, 90]),
        ("[1.5, 1e3, .inf]", [1.5, "1e3", float("inf")]),
        ("[yes, false, ~, '', '5', !!str 5, ! 5]", [True, False, None, "", "5", "5", 5]),
        ("2026-01-02", "2026-01-02"),
        ("{a: {b: [c]}, 5: d}", {"a": {"b": ["c"]}, "5": "d"}),
        ("- &a {x: 1, y: 2}\n- *a\n- {<<: *a, y: 3}", [{"x": 1, "y": 2}, {"x": 1, "y": 2}, {"x": 1, "y": 3}]),
        ("- &a {x: 1}\n- &b {x: 2, y: 2}\n- {<<: [*a, *b]}", [{"x": 1}, {"x": 2, "y": 2}, {"x": 1, "y": 2}]),
    ],
)
def test_a_document_becomes_plain_values(tmp_path: Path, content: str, value: Plain) -> None:
    assert read(tmp_path, content) == value


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (BOMB, "holds more than 20000 values, with aliases written out"),
        (MERGE_BOMB, "holds more than 20000 values, with aliases written out"),
        ("- x\n" * 30_000, "holds more than 20000 values"),
        ("&a [*a]", "line 1: *a names nothing above it"),
        ("[" * 5000, "line 1: nested more than 20 deep"),
        ("{a: " * 5000, "line 1: nested more than 20 deep"),
        ("- " * 5000, "line 1: nested more than 20 deep"),
        ("? [a]\n: b", "line 1: a key that is no text"),
        ("\na: 1\na: 2", "a: is set twice"),
        ("9" * 5000, "line 1: a number of 5000 characters"),
        ("1:" * 5000 + "1", "line 1: a number of 10001 characters"),
        ("!!int ''", "line 1:  is no int"),
        ("!!float x", "line 1: x is no float"),
        ("!!bool 7", "line 1: 7 is no bool"),
        ("!!binary aGk=", "line 1: tag tag:yaml.org,2002:binary is not known"),
        ("!!set {a}", "line 1: tag tag:yaml.org,2002:set is not known"),
        ("!!python/object:os.system ls", "is not known"),
        ("!!python/object/new:os.system [ls]", "is not known"),
        ("<<: 5", "<<: merges something that is no mapping"),
        ('"\\ud800"', "line 1: a text with a NUL or an unpaired surrogate"),
        ('"\\0"', "line 1: a text with a NUL or an unpaired surrogate"),
        ("a\n---\nb", "holds more than one YAML document"),
        ("{", "is not YAML: "),
        (b"\xff\xfe\xff", "is not YAML: "),
        (b"\x80", "is not YAML: "),
        ("#" * ((1 << 18) + 1), "larger than 262144 bytes"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_document_without_plain_values_is_rejected(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read(tmp_path, content)
    assert problem in str(raised.value)
    assert len(str(raised.value)) < 500


def test_an_unreadable_file_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
