"""The chat page in Chromium: its size, its first paint, and its frames per second while a long reply streams. Prints
one JSON line per case.

python benchmarks/serving/chat_page.py [--tokens N] [--rate N] [--rounds N]
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

from playwright.sync_api import Browser, Page, Route, sync_playwright

from ballast.server.routes.chat_page import FILES
from devkit.bench_record import bench_record
from devkit.servers.process import FAKE, ServerProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GOAL_BYTES, GOAL_PAINT_S, GOAL_FRAMES_PER_S = 600_000, 1.0, 30
WAIT_MS = 240_000

PROSE = "The **median** of a list stands in its middle, with $\\frac{n+1}{2}$ as its place:\n\n"
CODE = """```python
def median(values: list[float]) -> float:
    \"\"\"The middle of the values, or the mean of the middle two.\"\"\"
    if not values:
        raise ValueError("no values")
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
```

"""
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n\n"

COUNT_FRAMES = """() => {
  window.frames_at = [];
  const count = (now) => { window.frames_at.push(now); window.counting = requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=5000, help="tokens of the streamed reply")
    parser.add_argument("--rate", type=int, default=250, help="tokens per second of the stream")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(bench_record("serving/chat_page", "weight", **weight()))
    path = next(filter(None, map(shutil.which, BROWSERS)))
    with ServerProcess("--cache_lens", "32768", module=FAKE) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        paints = [first_paint_s(browser, server.url) for _ in range(options.rounds + 1)][1:]  # the first one warms up
        print(bench_record("serving/chat_page", "first paint", first_paint_s=paints, goal_s=GOAL_PAINT_S))
        for name, text in (
            ("prose, code and tables", mixed(options.tokens)),
            ("one block of code", code(options.tokens)),
        ):
            rounds = [frames(browser, server.url, text, options.rate) for _ in range(options.rounds)]
            figures = {figure: [each[figure] for each in rounds] for figure in rounds[0]}
            case = f"{options.tokens} tokens at {options.rate}/s, {name}"
            print(bench_record("serving/chat_page", case, **figures, goal_frames_per_s=GOAL_FRAMES_PER_S))
        browser.close()


def weight() -> dict[str, int]:
    """Bytes of the page's files, each compressed by gzip: all files, and the files that the first view loads."""
    static = resources.files("ballast.server.routes").joinpath("static")
    sizes = {name: len(gzip.compress(static.joinpath(name).read_bytes())) for name, _ in FILES.values()}
    first = sum(size for name, size in sizes.items() if not name.endswith(".woff2"))
    return {"first_view_bytes": first, "with_every_font_bytes": sum(sizes.values()), "goal_bytes": GOAL_BYTES}


def first_paint_s(browser: Browser, url: str) -> float:
    """Milliseconds from navigation to the first content, with an empty browser cache."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        page.locator("#examples button").first.wait_for()
        [paint] = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)"
        )
        return round(float(paint) / 1000, 3)


def frames(browser: Browser, url: str, pieces: list[str], rate: int) -> dict[str, float]:
    """Frames per second while `pieces` arrive: over the whole stream, and in its worst second."""
    with stream_server(pieces, rate) as port, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.route("**/v1/chat/completions", lambda route: leads_to(route, port))
        page.goto(url)
        page.locator("#prompt").fill("Write.")
        page.evaluate(COUNT_FRAMES)
        began = time.perf_counter()
        page.keyboard.press("Enter")
        page.locator("article.assistant .actions").wait_for()
        seconds = time.perf_counter() - began
        return {"seconds": round(seconds, 1), **rates(page)}


def rates(page: Page) -> dict[str, float]:
    at: list[float] = page.evaluate("(cancelAnimationFrame(window.counting), window.frames_at)")
    whole = [
        sum(start <= moment < start + 1000 for moment in at) for start in range(int(at[0]), int(at[-1]) - 1000, 100)
    ]
    gaps = [after - before for before, after in itertools.pairwise(at)]
    return {
        "frames_per_s": round(1000 * len(gaps) / (at[-1] - at[0]), 1),
        "worst_second_frames": min(whole),
        "longest_gap_ms": round(max(gaps), 1),
    }


def leads_to(route: Route, port: int) -> None:
    """The page sends requests to its own server; the browser redirects them to the one that streams."""
    route.continue_(url=f"http://127.0.0.1:{port}/v1/chat/completions")


def mixed(tokens: int) -> list[str]:
    return cut(PROSE + CODE + TABLE, tokens)


def code(tokens: int) -> list[str]:
    lines = CODE.strip().splitlines()
    return ["```python\n", *cut("\n".join(lines[1:-1]) + "\n\n", tokens - 1)]


def cut(text: str, tokens: int) -> list[str]:
    """`count` pieces of four characters, from the repeated text."""
    letters = itertools.cycle(text)
    return ["".join(itertools.islice(letters, 4)) for _ in range(tokens)]


@contextmanager
def stream_server(pieces: list[str], rate: int) -> Iterator[int]:
    """The port of a server that streams the pieces as a chat completion, `rate` pieces per second."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for frame in timed(pieces, rate):
                self.wfile.write(frame)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def timed(pieces: list[str], rate: int) -> Iterator[bytes]:
    began = time.perf_counter()
    for number, piece in enumerate(pieces):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        yield event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield b"data: [DONE]\n\n"


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


if __name__ == "__main__":
    main()
