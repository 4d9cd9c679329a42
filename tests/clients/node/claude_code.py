"""Claude Code, by Anthropic's Messages API."""

import agent

APIS = ("/v1/messages",)
TRIED = "two tasks in one conversation: read two files at once, edit one, run a command, answer"
MODEL = "script"


def environment(url, home):
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": agent.KEY,
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


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
