"""Untrusted JSON with a known structure: its values, or an error that names the field."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from ballast.documents.json_document import read_json
from ballast.documents.small_file import DocumentError, read_text


class Shape(BaseModel):
    model_config = ConfigDict(strict=True)

    size: int
    names: list[str] = []


def read(tmp_path: Path, content: str | bytes) -> Shape:
    file = tmp_path / "file.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_json(file, Shape, max_bytes=100_000)


def test_only_fields_of_the_schema_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, '{"size": 3, "names": ["a"], "more": [1]}') == Shape(size=3, names=["a"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{oops", "is not JSON: "),
        ("", "is not JSON: "),
        (b'{"size": 1, "x": "\xff"}', "is not JSON: "),
        ('{"size": 1, "x": "\\ud800"}', "is not JSON: "),
        ('{"size": 1, "x": ' + "[" * 20_000, "is not JSON: "),
        ("[]", "expected a JSON object, found list"),
        ("{}", "size is missing"),
        ('{"size": "3"}', "size=3: input should be a valid integer"),
        ('{"size": true}', "size=True: input should be a valid integer"),
        ('{"size": ' + "9" * 5000 + "}", "is not JSON: "),
        ('{"size": 1, "names": ["a", 5]}', "names.1=5: input should be a valid string"),
        ('{"size": 1, "names": "' + "a" * 5000 + '"}', "names=aaaa"),
        ('{"size": 1}' + " " * 100_000, "larger than 100000 bytes"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read(tmp_path, content)
    assert problem in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_skipped_and_utf_16_is_refused_by_name(tmp_path: Path, encoding: str) -> None:
    content = '{"size": 3}\r\n'.encode(encoding)
    file = tmp_path / "text"
    file.write_bytes(content)
    if encoding == "utf-8-sig":
        assert read(tmp_path, content) == Shape(size=3)
        assert read_text(file, 100) == '{"size": 3}\r\n'
        return
    with pytest.raises(DocumentError, match="is text in UTF-16; save it as UTF-8"):
        read(tmp_path, content)
    with pytest.raises(DocumentError, match="is text in UTF-16; save it as UTF-8"):
        read_text(file, 100)
