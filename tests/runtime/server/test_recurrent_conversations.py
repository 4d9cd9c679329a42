"""A server with a recurrent model: turns begin at snapshots, also after a restart with a folder."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from devkit.models.written import MakeTiny
from devkit.servers.process import JSON, ServerProcess

OPTIONS = (
    *("--device", "cpu", "--cpu_threads", "1", "--max_batch_size", "2", "--max_new_tokens", "16"),
    *("--cache_lens", "512", "--block_tokens", "16", "--kv_disk_bytes", "256MiB", "--state_snapshots", "9"),
)


class Conversation:
    """Each turn repeats all earlier text."""

    def __init__(self) -> None:
        self._messages = [{"role": "user", "content": "What is a ship's ballast for, and where? " * 6}]

    def turn(self, server: ServerProcess) -> tuple[str, dict[str, Any]]:
        """The reply and its usage."""
        body = {"messages": self._messages, "max_tokens": 12, "temperature": 0, "enable_thinking": False}
        request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), JSON)
        with urllib.request.urlopen(request, timeout=60) as response:
            reply: dict[str, Any] = json.load(response)
        message = reply["choices"][0]["message"]["content"]
        self._messages += [{"role": "assistant", "content": message}, {"role": "user", "content": "And then?"}]
        return message, reply["usage"]


@pytest.fixture(scope="module")
def model(written: MakeTiny) -> tuple[str, ...]:
    return ("--gguf_path", str(written(arch="qwen3next", mla="split", quant="q4_k").gguf))


def test_turns_begin_at_snapshots_also_after_a_restart(model: tuple[str, ...], tmp_path: Path) -> None:
    talk, other = Conversation(), Conversation()
    options = (*model, *OPTIONS, "--kv_disk_dir")
    with ServerProcess(*options, str(tmp_path / "kv")) as server:
        first, second = talk.turn(server), talk.turn(server)
        state = json.loads(server.get("/debug/state")[2])
        metrics = server.metrics()
        server.process.send_signal(signal.SIGTERM)  # this stores the states of all conversations
        assert server.process.wait(60) == 0
    assert second[1]["prompt_tokens_details"]["cached_tokens"] > first[1]["prompt_tokens"] - 40
    assert state["snapshot_positions"]
    assert all(position % 16 == 0 and position > 0 for position in state["snapshot_positions"])
    assert len(state["snapshot_positions"]) == state["numbers"]["snapshots"] == metrics["ballast_recurrent_snapshots"]
    assert metrics["ballast_recurrent_snapshot_hits_total"] >= 1
    assert metrics["ballast_recurrent_snapshot_bytes"] > 0
    assert (metrics["ballast_recurrent_slots"], metrics["ballast_recurrent_slots_used"]) == (2 * 2 + 9, 0)
    with ServerProcess(*options, str(tmp_path / "kv")) as server:
        third = talk.turn(server)
        metrics = server.metrics()
    assert metrics['ballast_kv_tier_recurrent_states{tier="disk"}'] > 0
    assert metrics['ballast_kv_tier_hit_tokens_total{tier="disk"}'] > 0
    assert third[1]["prompt_tokens_details"]["cached_tokens"] > second[1]["prompt_tokens"] - 40
    (heads,) = (tmp_path / "kv").rglob("state-heads")
    heads.write_bytes(b"")
    with ServerProcess(*options, str(tmp_path / "kv")) as server:
        found = server.event("KV tier")
        assert server.event("KV tier has no recurrent states: its tokens are computed again")["tier"] == "disk"
        assert talk.turn(server)[1]["prompt_tokens_details"]["cached_tokens"] == 0
        metrics = server.metrics()
    assert found["restored_states"] == 0 < found["restored_tokens"]
    assert metrics["ballast_prefix_cache_cut_tokens_total"] >= third[1]["prompt_tokens"] - 40
    with ServerProcess(*options, str(tmp_path / "other")) as server:
        assert [other.turn(server)[0] for _ in range(3)] == [first[0], second[0], third[0]]


def test_the_option_of_snapshots_is_reported_where_it_has_no_effect() -> None:
    with ServerProcess("--state_snapshots", "9") as server:  # the built-in model
        assert server.event("state_snapshots has no effect: the model has no recurrent state")["level"] == "warning"
