"""opencode, with the Chat Completions API."""

import agent
import howto

APIS = ("/v1/chat/completions",)
TRIED = "two tasks in one conversation: read two files in parallel, edit one, run a command, answer"


def configure(url, home):
    (home / "opencode.json").write_text(howto.block("opencode", "json", url))


def environment(url, home):
    config = str(home / "opencode.json")
    return {"OPENCODE_CONFIG": config, "OPENCODE_DISABLE_MODELS_FETCH": "1", "BALLAST_API_KEY": agent.KEY}


def check(folder):
    opencode = agent.Agent(
        program=agent.program(folder, "opencode-linux-*/bin/opencode"),
        path=APIS[0],
        begin=("run", "--format", "json"),
        go_on=("run", "--format", "json", "--continue"),
        environment=environment,
        configure=configure,
    )
    seen = [agent.check(opencode, "deepseek-v3.1"), agent.check(opencode, "deepseek-r1", num_tasks=1)]
    print(f"opencode: {TRIED}; {', '.join(seen)}", flush=True)
