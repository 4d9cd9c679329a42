"""A real Prometheus that scrapes processes on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from devkit.cluster.binaries import program
from devkit.cluster.process import Process, free_port

SCRAPE_INTERVAL_S = 1


class Prometheus(Process):
    """Scrapes `targets` (address → labels of its series) every second, and evaluates `rules`."""

    def __init__(self, folder: Path, targets: Mapping[str, Mapping[str, str]], rules: Path) -> None:
        self.port = free_port()
        config = {
            "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "ballast",
                    "honor_labels": True,
                    "static_configs": [{"targets": [at], "labels": dict(labels)} for at, labels in targets.items()],
                }
            ],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        flags = {
            "config.file": file,
            "storage.tsdb.path": folder / "series",
            "web.listen-address": f"127.0.0.1:{self.port}",
        }
        super().__init__("prometheus", [program("prometheus"), *(f"--{k}={v}" for k, v in flags.items())], folder)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found: list[dict[str, Any]] = self._ask("query", {"query": expression})["result"]
        return found

    def query_range(self, expression: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """The series of a range query, from `start` to `end` in Unix seconds."""
        window = {"start": str(start), "end": str(end), "step": str(step_s)}
        found: list[dict[str, Any]] = self._ask("query_range", {"query": expression, **window})["result"]
        return found

    def names(self) -> set[str]:
        """Names of all metrics scraped so far."""
        return set(self._ask("label/__name__/values", {}))

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self._ask("rules", {})["groups"] for rule in group["rules"]]

    def num_healthy_targets(self) -> int:
        """Number of targets whose last scrape succeeded."""
        return sum(target["health"] == "up" for target in self._ask("targets", {})["activeTargets"])

    def is_ready(self) -> bool:
        self.check()
        try:
            return httpx.get(self._at("/-/ready"), timeout=30, trust_env=False, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    def _ask(self, what: str, parameters: Mapping[str, str]) -> Any:
        reply = httpx.get(
            self._at(f"/api/v1/{what}"), params=dict(parameters), timeout=60, trust_env=False, verify=False
        )
        assert reply.status_code == 200, f"{parameters}: {reply.text}"
        return reply.json()["data"]

    def _at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def promtool(*words: str | Path, folder: Path) -> str:
    """Output of promtool. Fails the test if promtool reports an error."""
    done = subprocess.run(
        [program("promtool"), *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
