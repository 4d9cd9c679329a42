"""Claude Code, with Anthropic's Messages API."""

import shlex

import agent
import howto

APIS = ("/v1/messages",)
TRIED = "two tasks in one conversation: read two files in parallel, edit one, run a command, answer"


def environment(url, home):
    exports = "\n".join(line for line in howto.block("Claude Code", "", url).splitlines() if line.startswith("export "))
    given = dict(word.split("=", 1) for word in shlex.split(exports) if word != "export")
    return {name: value.replace("$BALLAST_API_KEY", agent.KEY) for name, value in given.items()}


def check(folder):
    begin = ("-p", "--output-format", "stream-json", "--verbose", "--allowedTools", "Read,Edit,Bash")
    claude = agent.Agent(
        program=agent.program(folder, "@anthropic-ai/claude-code-*/claude"),
        path=APIS[0],
        begin=(*begin, "--"),
        go_on=(*begin, "--continue", "--"),
        environment=environment,
    )
    seen = [agent.check(claude, "deepseek-v3.1"), agent.check(claude, "deepseek-r1", num_tasks=1)]
    print(f"claude-code: {TRIED}; {', '.join(seen)}", flush=True)
