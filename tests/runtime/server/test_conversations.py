"""A server with a folder for evicted KV blocks: conversations continue from it, also after SIGKILL."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ballast.model.tiers.block_file import head_type
from devkit.servers.process import JSON, ServerProcess

OPTIONS = (
    *("--device", "cpu", "--cpu_threads", "1", "--max_batch_size", "2", "--max_new_tokens", "16"),
    *("--cache_lens", "192", "--block_tokens", "16"),
)


def start(folder: Path | None) -> ServerProcess:
    beside = () if folder is None else ("--kv_disk_dir", str(folder), "--kv_disk_bytes", "64MiB")
    return ServerProcess(*OPTIONS, *beside)


class Conversation:
    """Turns of a conversation; each repeats all earlier text."""

    def __init__(self, topic: str) -> None:
        self._messages = [{"role": "user", "content": f"{topic}: " + "what is a ship's ballast for, and where? " * 6}]

    def turn(self, server: ServerProcess) -> tuple[str, int]:
        """The reply, and the number of cached prompt tokens."""
        body = {"messages": self._messages, "max_tokens": 12, "temperature": 0}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), JSON)
        with urllib.request.urlopen(request, timeout=60) as response:
            reply: dict[str, Any] = json.load(response)
        message = reply["choices"][0]["message"]["content"]
        self._messages += [{"role": "assistant", "content": message}, {"role": "user", "content": "And then?"}]
        return message, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def talk(server: ServerProcess, topics: list[Conversation]) -> list[tuple[str, int]]:
    return [topic.turn(server) for topic in topics]


def wait_until_written(folder: Path, num_blocks: int) -> None:
    """The disk has its own thread, which may be slower than a test."""
    until = time.monotonic() + 60
    (kept,) = folder.iterdir()
    while np.count_nonzero(np.fromfile(kept / "heads", head_type(16))["write"]) < num_blocks:
        assert time.monotonic() < until, f"{num_blocks} blocks were not written in time"
        time.sleep(0.01)


def test_conversations_continue_after_a_restart_and_a_kill(tmp_path: Path) -> None:
    names = ("sailing", "steel", "cranes")
    with start(None) as server:
        plain_topics = [Conversation(name) for name in names]
        plain = [talk(server, plain_topics) for _ in range(3)]
        assert "ballast_kv_tier_hit_tokens_total" not in str(server.metrics())
    topics = [Conversation(name) for name in names]
    with start(tmp_path / "kv") as server:
        first = talk(server, topics)
        wait_until_written(tmp_path / "kv", 3 * 5)
        second = talk(server, topics)
        wait_until_written(tmp_path / "kv", 3 * 6)
        metrics = server.metrics()
        state = json.loads(server.get("/debug/state")[2])
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
    hits = metrics['ballast_kv_tier_hit_tokens_total{tier="disk"}']
    assert hits >= 3 * 32, "the cache holds two of the three conversations"
    assert metrics['ballast_kv_tier_stored_bytes_total{tier="disk"}'] > 0
    assert metrics["ballast_kv_tier_wait_seconds_total"] > 0
    (tier,) = state["kv_tiers"]
    assert (tier["name"], tier["hit_tokens"]) == ("disk", hits)
    with start(tmp_path / "kv") as server:
        assert server.event("KV tier")["restored_tokens"] >= 3 * 64
        third = talk(server, topics)
    texts = [[message for message, _ in turn] for turn in (first, second, third)]
    assert texts == [[message for message, _ in turn] for turn in plain]
    assert all(cached >= 64 for _, cached in third), "the killed server's blocks are restored for all"


def test_an_unusable_folder_is_reported_and_has_no_other_effect(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with start(folder) as one, start(folder) as other:
        assert "another process is using it" in other.event("kv_disk_dir is not used")["why"]
        assert Conversation("sailing").turn(other)[0] == Conversation("sailing").turn(one)[0]


def test_a_bound_without_a_folder_is_refused() -> None:
    with pytest.raises(AssertionError, match="kv_disk_bytes=1GiB: limits a folder; set the folder with kv_disk_dir"):
        ServerProcess(*OPTIONS, "--kv_disk_bytes", "1GiB").__enter__()
