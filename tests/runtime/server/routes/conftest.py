"""A browser for the tests of the chat page."""

import pytest
from playwright.sync_api import expect, sync_playwright

from devkit.servers.page_steps import WAIT_MS
from tools.page import pictures


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=WAIT_MS)  # expect() does not use the page's timeout
    with (
        sync_playwright() as playwright,
        pictures.chromium(playwright, "--host-resolver-rules=MAP evil.example 127.0.0.1") as started,
    ):
        yield started


@pytest.fixture
def page(browser):
    """A tab that fails the test if the page logs an error, violates its policy or contacts another host."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    faults = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    # Chromium also logs every 4xx response; the page itself shows those.
    tab.on("console", lambda line: faults.append(line.text) if _is_fault(line) else None)
    tab.on("request", lambda requested: faults.append(requested.url) if "//127.0.0.1:" not in requested.url else None)
    yield tab
    context.close()
    assert faults == []


def _is_fault(line):
    return line.type == "error" and not line.text.startswith("Failed to load resource: the server responded")
