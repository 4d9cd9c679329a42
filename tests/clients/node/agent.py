"""A coding agent performs the task of `devkit.servers.agent_script` with a server."""

import itertools
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.servers.agent_script import ANSWER, TASK
from devkit.servers.process import ServerProcess

AGENT = ("devkit.servers.agent_server",)
OPTIONS = (
    *("--max_batch_size", "4", "--max_new_tokens", "4000", "--cache_lens", "600000", "--chunk_size", "8192"),
    *("--log_level", "info"),
)
TIMEOUT_S = 120
KEY = "a-key"
TURNS = 4
"""Read, edit, run, answer."""


@dataclass(frozen=True)
class Agent:
    """How to run an agent. Each function gets the server's URL and the agent's home."""

    program: Path
    path: str
    """Path of the API that it uses."""
    begin: Sequence[str]
    """The arguments before the task, in a new conversation."""
    go_on: Sequence[str]
    """The same, to continue the previous conversation."""
    environment: Callable[[str, Path], Mapping[str, str]]
    configure: Callable[[str, Path], None] = lambda url, home: None
    """Writes its configuration."""
    ignored: frozenset[str] = frozenset()
    """Fields of its requests that the server does not know."""


def program(folder: Path, *patterns: str) -> Path:
    """The executable in an agent's packages. Raises AssertionError if there is none for this machine."""
    found = [path for pattern in patterns for path in sorted(folder.glob(f"node_modules/{pattern}"))]
    machine = os.uname().machine
    assert found, f"{folder.name}: its npm package has no program for {machine}; run only the other clients, by name"
    return found[0]


def check(agent: Agent, template: str, num_tasks: int = 2) -> str:
    """Let the agent do `num_tasks` tasks in one conversation with a model of that template. Returns a description of
    the requests."""
    with tempfile.TemporaryDirectory(prefix="agent-") as directory, _server(template, Path(directory)) as server:
        home = Path(directory) / "home"
        home.mkdir()
        agent.configure(server.url, home)
        for n, arguments in enumerate([agent.begin, agent.go_on][:num_tasks]):
            _do_task(agent, arguments, server.url, home, Path(directory) / "work", f"task-{n}")
        server.wait_until_empty()
        requests = [event for event in server.events if event["event"] == "request" and event["method"] == "POST"]
    _assert_served(agent, requests, num_tasks)
    return f"{num_tasks * TURNS} turns with {template}"


def _server(template: str, directory: Path) -> ServerProcess:
    keys = directory / "keys"
    keys.write_text(KEY)
    keyed = ("--api_key_file", str(keys), "--admin_port", "0")
    return ServerProcess("--chat_template", template, *keyed, *OPTIONS, module=AGENT)


def _do_task(agent: Agent, arguments: Sequence[str], url: str, home: Path, work: Path, name: str) -> None:
    number = str(random.randrange(10**5, 10**6))
    directory = work / name
    directory.mkdir(parents=True)
    (directory / "source.txt").write_text(f"number: {number}\n")
    target = directory / "target.txt"
    target.write_text("number: none\n")
    done = subprocess.run(
        [str(agent.program), *arguments, TASK.format(directory=directory)],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **agent.environment(url, home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = f"{done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    assert done.returncode == 0, output
    assert target.read_text() == f"number: {number}\n", output
    size = (directory / "size.txt").read_text().strip()
    assert size == str(target.stat().st_size), output
    assert ANSWER.format(number=number, size=size) in done.stdout, output


def _assert_served(agent, requests, num_tasks):
    """Assert that every request was answered, and that the requests of each task extend the previous ones."""
    failed = [request for request in requests if request["status"] != 200 or request["outcome"] != "ok"]
    assert not failed, failed
    turns = [request for request in requests if request["path"] == agent.path and request["prompt_tokens"] > 10_000]
    ends = ["tool_calls"] * (TURNS - 1) + ["stop"]
    assert [turn["finish_reason"] for turn in turns] == num_tasks * ends, turns
    ignored = {field for request in requests for field in request.get("ignored_fields", "").split(", ") if field}
    assert ignored == agent.ignored, ignored
    for before, turn in itertools.pairwise(turns):
        assert turn["cached_tokens"] > 0.9 * before["prompt_tokens"], (before, turn)
