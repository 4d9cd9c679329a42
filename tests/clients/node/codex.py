"""Codex CLI, with the Responses API."""

import dataclasses

import agent
import howto

APIS = ("/v1/responses",)
TRIED = "two tasks in one conversation: read two files in parallel, edit one, run a command, answer"


def configure(url, home):
    (home / "config.toml").write_text(howto.block("Codex", "toml", url))


def configure_with_model(url, home):
    """Add the settings that it knows for a model; otherwise it has no `apply_patch` tool, whose argument is free
    text."""
    (home / "models.json").write_text(howto.block("Codex", "json", url))
    named = f'model_catalog_json = "{home}/models.json"\n'
    (home / "config.toml").write_text(named + howto.block("Codex", "toml", url))


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
