"""The text of files inside a message, in the format of DeepSeek's models."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import unquote_to_bytes

from ballast.wire.parsing import refuse

_DATA_URL = "data:"
_SHOWN_CHARS = 40


def file_prompt(name: Any, text: str) -> str:
    """The text of a file for the model. Its `name` is omitted if it is not a string."""
    head = f"[file name]: {name}\n" if isinstance(name, str) and name else ""
    return f"{head}[file content begin]\n{text}\n[file content end]"


def decoded_text(data: Any, path: str) -> str:
    """The text in `data`, which is base64 or a data: URL. Raises RequestError for the field `path` if it is not text,
    such as a PDF or an image."""
    if not isinstance(data, str):
        refuse(path, "must be a string: base64, or a data: URL")
    head, is_url, payload = data.partition(",") if data.startswith(_DATA_URL) else ("", "", data)
    try:
        raw = unquote_to_bytes(payload) if is_url and not head.endswith(";base64") else _from_base64(payload)
    except ValueError:
        refuse(path, "is neither base64 nor a data: URL")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or raw.startswith(b"%PDF-"):
        kind = head.removeprefix(_DATA_URL).partition(";")[0][:_SHOWN_CHARS] or "its content"
        refuse(path, f"this model reads only text, in UTF-8, and {kind} is not; send the file's text")
    return text


def _from_base64(text: str) -> bytes:
    """Raises ValueError."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
