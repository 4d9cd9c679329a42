"""User actions on the chat page, and scripted model replies."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page

WAIT_MS = 20_000


def ask(page: Page, text: str) -> None:
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def chunk(**delta: Any) -> str:
    """An event of a streamed reply."""
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + "\n\n"


def shows(page: Page, *texts: str) -> None:
    """Replace the page's next replies by these texts, since the fake model writes only letters."""
    bodies = iter([chunk(content=text) + "data: [DONE]\n\n" for text in texts])
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=next(bodies)))
