"""The server on a kernel with two NUMA nodes: threads, pages, reports and text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest

from devkit.cluster.binaries import ROOT
from devkit.cluster.waiting import wait_for
from devkit.models.gguf_files import Tensors, copy_model
from devkit.vm.guest import ADDRESS, Guest
from devkit.vm.table import Table

API, ADMIN = f"http://{ADDRESS}:10002", f"http://{ADDRESS}:10003"
BUILT_IN = ROOT / "runtime" / "ballast" / "tiny" / "trained"
CPUS_PER_NODE = 2
MODEL = "/opt/model"
SERVE = ("python3", "-m", "ballast", "serve", "--gguf_path", f"{MODEL}/model.gguf", "--model_path", f"{MODEL}/config")
LISTEN = ("--host", "0.0.0.0", "--port", "10002", "--admin_port", "10003")
PROMPTS = ("What is Ballast?", "Which file format holds the weights?", "Count from one to ten.")
READY_TIMEOUT_S, REPLY_TIMEOUT_S = 240, 240


@pytest.fixture(scope="module", autouse=True)
def _model(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The built-in model with its last expert matrices as floats: quantized ones with 256 columns are too small to be
    split."""
    file = copy_model(BUILT_IN / "model.gguf", tmp_path_factory.mktemp("model") / "model.gguf", _with_float_downs)
    guest.write(f"{MODEL}/model.gguf", file.read_bytes())
    for path in (BUILT_IN / "config").iterdir():
        guest.write(f"{MODEL}/config/{path.name}", Path(path).read_bytes())


def _with_float_downs(tensors: Tensors) -> Tensors:
    return {
        name: (gguf.quants.dequantize(data, kind).astype(np.float16), gguf.GGMLQuantizationType.F16)
        if name.endswith("ffn_down_exps.weight")
        else (data, kind)
        for name, (data, kind) in tensors.items()
    }


@dataclass(frozen=True, slots=True)
class Running:
    """A server in the guest, identified by its process id."""

    guest: Guest
    pid: int

    def text(self, prompt: str) -> str:
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 48}
        with httpx.Client(trust_env=False, timeout=REPLY_TIMEOUT_S) as client:
            answer = client.post(f"{API}/v1/chat/completions", json=body).raise_for_status().json()
        return str(answer["choices"][0]["message"]["content"])

    def report(self) -> dict[str, Any]:
        """The process's own report."""
        answer = httpx.get(f"{ADMIN}/debug/numa", trust_env=False, timeout=120).raise_for_status()
        return dict(answer.json())

    def cpus_of_threads(self) -> list[str]:
        """CPU affinities of its compute threads, according to the kernel."""
        shown = self.guest.run("sh", "-c", f"grep -hE '^(Name|Cpus_allowed_list):' /proc/{self.pid}/task/*/status")
        return sorted(re.findall(r"Name:\s+ballast-cpu-\d+\nCpus_allowed_list:\s+(\S+)", shown))

    def bound_pages(self) -> dict[int, Counter[int]]:
        """Its memory according to the kernel: preferred node of a mapping → node of its pages → number of 4 KiB
        pages."""
        bound: dict[int, Counter[int]] = {}
        for line in self.guest.read(f"/proc/{self.pid}/numa_maps").splitlines():
            if policy := re.search(r" prefer:(\d+)", line):
                pages = {int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)}
                bound.setdefault(int(policy[1]), Counter()).update(pages)
        return bound


@contextmanager
def running(guest: Guest, name: str, *before: str, options: tuple[str, ...] = ()) -> Iterator[Running]:
    pid = guest.start_process(name, [*before, *SERVE, *LISTEN, *options])

    def is_ready() -> bool:
        if not guest.is_running(pid):
            raise RuntimeError(f"{name} ended:\n{guest.log(name)[-4000:]}")
        try:
            return httpx.get(f"{ADMIN}/readyz", trust_env=False, timeout=20).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(f"{name} to be ready", is_ready, READY_TIMEOUT_S, interval_s=1)
        yield Running(guest, pid)
    finally:
        guest.end_process(pid)


def test_each_node_computes_with_the_experts_in_its_own_memory(guest: Guest, table: Table) -> None:
    with running(guest, "one-node", "taskset", "-c", "0,1") as server:
        texts_of_one = [server.text(prompt) for prompt in PROMPTS]
        one = server.report()
    assert [node["threads"] for node in one["nodes"]] == [2, 0]

    with running(guest, "two-nodes") as server:
        texts_of_two = [server.text(prompt) for prompt in PROMPTS]
        two, cpus, bound = server.report(), server.cpus_of_threads(), server.bound_pages()
    assert texts_of_two == texts_of_one
    assert cpus == ["0", "1", "2", "3"], "the kernel confirms that each thread has its own CPU"
    assert two["pinned"]
    assert two["mempolicy_available"]
    assert {node["node"]: node["threads"] for node in two["nodes"]} == {0: 2, 1: 2}
    assert set(bound) == {0, 1}
    for node, pages in bound.items():
        assert set(pages) == {node}, "pages that are bound to a node must be on it"
    experts = {node["node"]: node["expert_bytes"] for node in two["nodes"]}
    total = sum(experts.values())
    assert all(abs(part / total - 0.5) < 0.05 for part in experts.values()), (
        f"half per node, two threads each: {experts}"
    )
    for node, expert_bytes in experts.items():
        assert expert_bytes <= 4096 * bound[node][node], "the report must not exceed the kernel's numbers"

    for case, report in (("threads on one node", one), ("threads on two nodes", two)):
        nodes = report["nodes"]
        table.add(
            f"server, {case}",
            threads=[node["threads"] for node in nodes],
            thread_cpus=[thread["cpus"] for thread in report["threads"]],
            expert_bytes=[node["expert_bytes"] for node in nodes],
            weight_bytes=[node["weight_bytes"] for node in nodes],
            share_local=report["share_local"],
            text_equal=True,
        )
    table.add("numa_maps, two nodes", bound_pages_on_own_node=[bound[0][0], bound[1][1]], bound_pages_elsewhere=0)


def test_single_keeps_one_node_where_auto_would_spread(guest: Guest, table: Table) -> None:
    for mode, threads in (("auto", [1, 1]), ("single", [2, 0])):
        with running(guest, mode, options=("--numa", mode, "--cpu_threads", "2")) as server:
            report, bound = server.report(), server.bound_pages()
        assert report["pinned"]
        assert [node["threads"] for node in report["nodes"]] == threads
        assert set(bound) == {node for node, count in enumerate(threads) if count}
        seen = {"threads": threads, "expert_bytes": [node["expert_bytes"] for node in report["nodes"]]}
        table.add(f"server, 2 threads, --numa {mode}", **seen, share_local=report["share_local"])


def test_numa_off_binds_no_memory(guest: Guest, table: Table) -> None:
    with running(guest, "off", options=("--numa", "off")) as server:
        report, bound = server.report(), server.bound_pages()
        assert server.text(PROMPTS[0])
    assert not report["pinned"]
    assert "numa is off" in report["pinned_reason"]
    assert not bound
    table.add("server, --numa off", pinned=False, bound_pages=0, share_local=report["share_local"])
