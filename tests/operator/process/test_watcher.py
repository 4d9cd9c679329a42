"""The watches restart whenever they end."""

import asyncio
import queue
import threading

from ballast_operator.cluster.kinds import POD
from ballast_operator.process import watcher


def test_a_watcher_restarts_on_request_or_failure_and_leaks_no_thread(monkeypatch):
    reported = queue.Queue()
    failures = [OSError("no way on")]

    async def watch(_registry, namespaces, leave):
        reported.put(("began", namespaces))
        if failures:
            raise failures.pop()
        await leave.wait()
        reported.put(("left", namespaces))

    def next_of(word):
        assert reported.get(timeout=20) == (word, ("ns",))

    monkeypatch.setattr(watcher, "watch", watch)
    watching = watcher.Watcher(lambda *_: None, lambda: [POD], ("ns",))
    watching.start()
    for word in ("began", "began"):
        next_of(word)
    watching.restart()
    for word in ("left", "began"):
        next_of(word)
    asyncio.run(watching.stop())
    next_of("left")
    assert reported.empty()
    assert "watches" not in {thread.name for thread in threading.enumerate()}
