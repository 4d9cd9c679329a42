"""The site's search, in a browser, shows the right page first for typical search words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error, Page, expect, sync_playwright

from tools.page.pictures import chromium

RESULT_MS = 3000
MAX_MISSES = 4

SEARCHES = {
    "quickstart": "quickstart",
    "install": "install",
    "pip install": "install",
    "requirements": "install",
    "docker run": "one-machine/docker",
    "docker compose": "one-machine/docker",
    "systemd": "one-machine/systemd",
    "context length": "one-machine/memory-and-context",
    "how much memory": "one-machine/memory-and-context",
    "vram": "one-machine/memory-and-context",
    "which model": "one-machine/choose-a-model",
    "hardware": "one-machine/choose-a-model",
    "tokens per second": "one-machine/choose-a-model",
    "download model": "one-machine/download-models",
    "hugging face": "one-machine/download-models",
    "gpu setup": "one-machine/gpu",
    "flashinfer": "one-machine/gpu",
    "multi-gpu": "about/not-supported",
    "windows": "about/not-supported",
    "embeddings": "about/not-supported",
    "license": "about/license",
    "quality": "about/guarantees",
    "benchmarks": "benchmarks",
    "kv cache": "one-machine/kv-cache",
    "many users": "one-machine/many-users",
    "slow": "one-machine/troubleshooting",
    "faq": "one-machine/troubleshooting",
    "chat ui": "clients/chat-page",
    "open webui": "clients/open-webui",
    "claude code": "clients/coding-agents",
    "openai api": "clients/openai-api",
    "tool calling": "clients/openai-api",
    "batch": "clients/batch",
    "python library": "clients/python",
    "numa": "kubernetes/numa",
    "grafana": "kubernetes/monitoring",
    "helm upgrade": "kubernetes/upgrade",
    "argo cd": "kubernetes/gitops",
    "rbac": "kubernetes/permissions",
    "crashloopbackoff": "kubernetes/troubleshooting",
    "pvc": "kubernetes/models",
    "llama.cpp": "migrate/llama-cpp",
    "ktransformers": "migrate/ktransformers",
    "vllm": "migrate/vllm",
    "ollama": "migrate/ollama",
    "error codes": "reference/errors",
    "supported models": "reference/models",
    "temperature": "reference/request-fields",
}
"""Search words → the page that should come first."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Requests for the site's files are not logged."""


@pytest.fixture(scope="module")
def page(site: Path) -> Iterator[Page]:
    """The home page with its search open. The search works only over HTTP."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with sync_playwright() as playwright, chromium(playwright) as browser:
            opened = browser.new_page()
            opened.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            opened.locator(".md-search__button").click()
            yield opened
        server.shutdown()


def first_result(page: Page, words: str) -> str:
    """Path of the first result; empty if there is none."""
    box, results = page.locator("input[aria-label=Search]"), page.locator("a[role=option]")
    box.fill("")
    expect(results).to_have_count(0)
    box.fill(words)
    try:
        address = results.first.get_attribute("href", timeout=RESULT_MS)
    except Error:
        return ""
    return urlsplit(address or "").path.strip("/")


def test_the_search_finds_the_right_page_first(page: Page) -> None:
    assert len(SEARCHES) >= 40
    found = {words: first_result(page, words) for words in SEARCHES}
    missed = {words: found[words] for words, right in SEARCHES.items() if found[words] != right}
    assert len(missed) <= MAX_MISSES, missed
