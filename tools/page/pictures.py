"""Take the documentation's pictures of the chat page, with replies of the built-in model.

    python -m tools.page.pictures [DIRECTORY]      default: docs/pictures

Starts its own server on a free port, and needs Chromium (`make browser`).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, Playwright, ViewportSize, expect, sync_playwright

from devkit.servers.process import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""In order of start time, fastest first."""
WAIT_MS = 60_000
SIZES = {"chat.png": (1000, 1180), "chat-dark.png": (1000, 1180), "chat-phone.png": (390, 780)}

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else ROOT / "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    with ServerProcess() as server, sync_playwright() as playwright, chromium(playwright) as browser:
        take(browser, server.url, folder)
    return 0


def chromium(playwright: Playwright, *options: str) -> Browser:
    """The machine's Chromium, started with further command-line `options`. Raises FileNotFoundError without one."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise FileNotFoundError("no Chromium in PATH; run: make browser")
    # Inside a container, and as root, Chromium has no sandbox of its own. It opens only this project's pages.
    options = ("--no-sandbox", "--disable-dev-shm-usage", *options)
    return playwright.chromium.launch(executable_path=path, args=list(options))


def take(browser: Browser, url: str, folder: Path) -> None:
    """Writes a picture for each of `SIZES` to `folder`."""
    for name, (width, height) in SIZES.items():
        scheme: Literal["dark", "light"] = "dark" if "dark" in name else "light"
        size = ViewportSize(width=width, height=height)
        with browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce") as context:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(url)
            expect(page.locator("#examples button")).to_have_count(4)
            talk(page)
            page.screenshot(path=folder / name)


def talk(page: Page) -> None:
    """A question about Ballast, a sum with reasoning, and a tool call."""
    page.locator("#examples button").first.click()
    wait(page, 1)
    page.locator("#thinking").evaluate("field => field.value = 'on'")
    ask(page, "What is 417 + 258?")
    wait(page, 2)
    page.locator("article.assistant summary").last.click()
    page.locator("#thinking").evaluate("field => field.value = 'off'")
    page.locator("#tools").evaluate("(field, tools) => field.value = tools", json.dumps([WEATHER]))
    ask(page, "What is the weather in Oslo?")
    wait(page, 3)
    page.locator("#talk").evaluate("talk => talk.scrollTop = talk.scrollHeight")
    page.locator("#context-text").wait_for()


def ask(page: Page, text: str) -> None:
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")


def wait(page: Page, replies: int) -> None:
    expect(page.locator("article.assistant .actions")).to_have_count(replies, timeout=WAIT_MS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
