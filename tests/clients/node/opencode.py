"""opencode, by the Chat Completions API."""

import json

import agent

MODEL = {"name": "script", "reasoning": True, "tool_call": True, "limit": {"context": 262144, "output": 4000}}


def configure(url, home):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Ballast",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"script": MODEL},
    }
    config = {"model": "ballast/script", "autoupdate": False, "provider": {"ballast": provider}}
    (home / "opencode.json").write_text(json.dumps(config))


def environment(url, home):
    return {"OPENCODE_CONFIG": str(home / "opencode.json"), "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def check(folder):
    opencode = agent.Agent(
        program=agent.program(folder, "opencode-linux-*/bin/opencode"),
        path="/v1/chat/completions",
        begin=("run", "--format", "json"),
        go_on=("run", "--format", "json", "--continue"),
        environment=environment,
        configure=configure,
    )
    seen = [agent.check(opencode, "deepseek-v3.1"), agent.check(opencode, "deepseek-r1", num_tasks=1)]
    print(f"opencode: a task of reading, editing, running and answering; {', '.join(seen)}", flush=True)
