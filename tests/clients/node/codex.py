"""Codex CLI, by the Responses API."""

import dataclasses
import json

import agent

APIS = ("/v1/responses",)
TRIED = "two tasks in one conversation: read two files at once, edit one, run a command, answer"
CONFIG = """\
model = "script"
model_provider = "ballast"
model_reasoning_effort = "high"
check_for_update_on_startup = false

[model_providers.ballast]
name = "Ballast"
base_url = "{url}/v1"
env_key = "BALLAST_API_KEY"
wire_api = "responses"

[features]
plugins = false
apps = false
"""
MODEL = {
    "slug": "script",
    "display_name": "script",
    "base_instructions": "You are a coding agent.",
    "apply_patch_tool_type": "freeform",
    "context_window": 262144,
    "experimental_supported_tools": [],
    "priority": 1,
    "shell_type": "unified_exec",
    "support_verbosity": False,
    "supported_in_api": True,
    "supported_reasoning_levels": [{"effort": "high", "description": "thinks"}],
    "supports_parallel_tool_calls": True,
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "visibility": "list",
}
"""What it may know of a model; without it there is no `apply_patch`, whose argument is a free text."""


def configure(url, home):
    (home / "config.toml").write_text(CONFIG.format(url=url))


def configure_with_model(url, home):
    (home / "models.json").write_text(json.dumps({"models": [MODEL]}))
    (home / "config.toml").write_text(f'model_catalog_json = "{home}/models.json"\n{CONFIG.format(url=url)}')


def environment(url, home):
    return {"CODEX_HOME": str(home), "BALLAST_API_KEY": agent.KEY}


def check(folder):
    options = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    codex = agent.Agent(
        program=agent.program(folder, "@openai/codex-*/vendor/*/bin/codex"),
        path=APIS[0],
        begin=("exec", *options),
        go_on=("exec", "resume", "--last", *options),
        environment=environment,
        configure=configure_with_model,
        ignored=frozenset({"tools.9"}),  # web_search
    )
    plain = dataclasses.replace(codex, configure=configure, ignored=frozenset({"tools.8"}))
    seen = [agent.check(codex, "deepseek-v3.1"), agent.check(plain, "deepseek-r1", num_tasks=1)]
    print(f"codex: {TRIED}; {', '.join(seen)}", flush=True)
