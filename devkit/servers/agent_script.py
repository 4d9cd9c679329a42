"""Scripted replies to a coding agent with the task `TASK`: one step per reply, chosen from the prompt.

It reads two files in parallel, edits one with content of the other, runs a command and reports its output.
So a final answer with the right number in it has been through every tool. Prompts and replies are those of DeepSeek
V3.1 or of R1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

TASK = "The agent's task is in {directory}: put the number of source.txt into target.txt, then count its bytes."
"""What the user says. source.txt holds `number: N`, target.txt `number: none`."""
ANSWER = "The number is {number}; target.txt has {size} bytes now."
"""What the model says in the end."""
OTHERWISE = "A short task"
"""What it says to every other prompt, such as one for a title."""
THOUGHT = "One step after another."
"""Its reasoning: R1's always, V3.1's where the prompt asks for some."""

_TASK = re.compile(re.escape(TASK).replace(re.escape("{directory}"), r"(/[\w./-]*[\w-])"))
_DECLARED = re.compile(r"^### (\S+)\nDescription: |^- `(\S+)`:\n```json$", re.MULTILINE)
_FENCED = "function<｜tool▁sep｜>FUNCTION_NAME\n```json\n"
"""What R1's template says of the form of calls."""
_USER = "<｜User｜>"
_OUTPUT = re.compile("<｜tool▁output▁begin｜>(.*?)<｜tool▁output▁end｜>", re.DOTALL)

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments."""


@dataclass(frozen=True, slots=True)
class Tools:
    """How an agent's tools do the task's steps."""

    read: Callable[[str], Call]
    edit: Callable[[str, str, str], Call]
    """Of a file: the line that goes, the line that comes."""
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
"""The tools that tell an agent, and how they are used: Claude Code's, Codex's, opencode's."""


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
            raise ValueError(f"{count} tools have answered, and the task takes 2, 3 or 4")


def _found(pattern: str, output: str) -> str:
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise ValueError(f"a tool was to return {pattern!r} and returned {output[:500]!r}")
    return found[found.lastindex or 0]


def _written(calls: tuple[Call, ...], *, fenced: bool) -> str:
    form = "function<｜tool▁sep｜>{}\n```json\n{}\n```" if fenced else "{}<｜tool▁sep｜>{}"
    each = [
        f"<｜tool▁call▁begin｜>{form.format(name, json.dumps(arguments))}<｜tool▁call▁end｜>"
        for name, arguments in calls
    ]
    return f"<｜tool▁calls▁begin｜>{''.join(each)}<｜tool▁calls▁end｜>" if calls else ""
