"""A fake OpenTelemetry collector that receives spans by OTLP over HTTP as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Object = dict[str, Any]


class Collector:
    """Accepts or rejects spans."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Object] = []
        self.resources: list[Object] = []
        self.paths: list[tuple[str, str | None]] = []
        self.arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with collector.arrived:
                    collector.paths.append((self.path, self.headers["Content-Type"]))
                    for part in body["resourceSpans"]:
                        collector.resources.append(attributes(part["resource"]))
                        for scope in part["scopeSpans"]:
                            collector.spans += scope["spans"]
                    collector.arrived.notify_all()
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def wait(self, enough: Callable[[list[Object]], object], timeout_s: float = 60) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: enough(self.spans), timeout_s), self.spans

    @contextmanager
    def serving(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join(10)


def attributes(part: Object) -> Object:
    return {item["key"]: next(iter(item["value"].values())) for item in part["attributes"]}
