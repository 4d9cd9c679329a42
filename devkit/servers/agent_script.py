"""Scripted replies to a coding agent with the task `TASK`: one step per reply, chosen from the prompt.

It reads two files in parallel, edits one with content from the other, runs a command and reports its output.
A final answer with the right number has therefore passed through every tool. Prompts and replies use the format of
DeepSeek V3.1 or R1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

TASK = "The agent's task is in {directory}: put the number of source.txt into target.txt, then count its bytes."
"""The user's message. source.txt contains `number: N`, target.txt `number: none`."""
ANSWER = "The number is {number}; target.txt has {size} bytes now."
"""The model's final reply."""
OTHERWISE = "A short task"
"""Its reply to every other prompt, such as a request for a title."""
THOUGHT = "One step after another."
"""Its reasoning: always with R1, with V3.1 only if the prompt requests it."""

_TASK = re.compile(re.escape(TASK).replace(re.escape("{directory}"), r"(/[\w./-]*[\w-])"))
_DECLARED = re.compile(r"^### (\S+)\nDescription: |^- `(\S+)`:\n```json$", re.MULTILINE)
_FENCED = "function<｜tool▁sep｜>FUNCTION_NAME\n```json\n"
"""R1's template contains this description of the call format."""
_USER = "<｜User｜>"
_OUTPUT = re.compile("<｜tool▁output▁begin｜>(.*?)<｜tool▁output▁end｜>", re.DOTALL)

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""


@dataclass(frozen=True, slots=True)
class Tools:
    """How an agent's tools perform the task's steps."""

    read: Callable[[str], Call]
    edit: Callable[[str, str, str], Call]
    """Arguments: the file, the old line, the new line."""
    run: Callable[[str], Call]


def _patch(path: str, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"


_CODEX = Tools(
    read=lambda path: ("exec_command", {"cmd": f"cat {path}"}),
    edit=lambda path, old, new: ("apply_patch", {"input": _patch(path, old, new)}),
    run=lambda command: ("exec_command", {"cmd": command}),
)
_AGENTS: Mapping[frozenset[str], Tools] = {
    frozenset({"Read", "Edit", "Bash"}): Tools(
        read=lambda path: ("Read", {"file_path": path}),
        edit=lambda path, old, new: ("Edit", {"file_path": path, "old_string": old, "new_string": new}),
        run=lambda command: ("Bash", {"command": command, "description": "Count bytes"}),
    ),
    frozenset({"exec_command", "apply_patch"}): _CODEX,
    frozenset({"exec_command"}): replace(
        _CODEX,
        edit=lambda path, old, new: _CODEX.run(f"apply_patch <<'PATCH'\n{_patch(path, old, new)}\nPATCH"),
    ),
    frozenset({"read", "edit", "bash"}): Tools(
        read=lambda path: ("read", {"filePath": path}),
        edit=lambda path, old, new: ("edit", {"filePath": path, "oldString": old, "newString": new}),
        run=lambda command: ("bash", {"command": command, "description": "Count bytes"}),
    ),
}
"""By the tool that identifies the agent (Claude Code, Codex, opencode): how its tools are used."""


def reply(prompt: str) -> str:
    """The next reply. Raises ValueError if a tool has not returned the result that the task needs."""
    fenced = _FENCED in prompt
    thinks = fenced or prompt.endswith("<think>")
    message: str = OTHERWISE
    calls: tuple[Call, ...] = ()
    tasks = list(_TASK.finditer(prompt))
    tools = _tools(prompt[: prompt.index(_USER)]) if _USER in prompt else None
    if tasks and tools is not None:
        message, calls = _step(tools, tasks[-1][1], _OUTPUT.findall(prompt, tasks[-1].end()))
    return (f"{THOUGHT}</think>" if thinks else "") + message + _written(calls, fenced=fenced)


def _tools(head: str) -> Tools | None:
    declared = {name for names in _DECLARED.findall(head) for name in names}
    return next((tools for names, tools in _AGENTS.items() if names <= declared), None)


def _step(tools: Tools, directory: str, outputs: list[str]) -> tuple[str, tuple[Call, ...]]:
    source, target = f"{directory}/source.txt", f"{directory}/target.txt"
    match len(outputs):
        case 0:
            return "I read both files.", (tools.read(source), tools.read(target))
        case 2:
            number = _found(r"number: (\d+)", outputs[0])
            _found(r"number: none", outputs[1])
            return "I write it down.", (tools.edit(target, "number: none", f"number: {number}"),)
        case 3:
            return "I count.", (tools.run(f"wc -c < {target} | tee {directory}/size.txt"),)
        case 4:
            number, size = _found(r"number: (\d+)", outputs[0]), _found(r"^\s*(\d+)\s*$", outputs[3])
            return ANSWER.format(number=number, size=size), ()
        case count:
            raise ValueError(f"the prompt has {count} tool results; the task takes 2, 3 or 4")


def _found(pattern: str, output: str) -> str:
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise ValueError(f"expected a tool result with {pattern!r}, got {output[:500]!r}")
    return found[found.lastindex or 0]


def _written(calls: tuple[Call, ...], *, fenced: bool) -> str:
    form = "function<｜tool▁sep｜>{}\n```json\n{}\n```" if fenced else "{}<｜tool▁sep｜>{}"
    each = [
        f"<｜tool▁call▁begin｜>{form.format(name, json.dumps(arguments))}<｜tool▁call▁end｜>"
        for name, arguments in calls
    ]
    return f"<｜tool▁calls▁begin｜>{''.join(each)}<｜tool▁calls▁end｜>" if calls else ""
