"""Requests of coding agents, with the fields and tools that they send."""

import json

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.wire.client_tools import InputText, custom_input
from devkit.servers.process import ServerProcess
from devkit.servers.script_server import PARIS
from devkit.servers.sdk_client import openai_client

SCRIPT = ("devkit.servers.script_server",)
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string"}},
}


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--chat_template", "deepseek-r1", "--max_new_tokens", "500", module=SCRIPT) as process:
        yield process


def post(server, path, body, **headers):
    reply = httpx.post(server.url + path, json=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply


def events(reply):
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]


CLAUDE_CODE = {
    "model": "claude-opus",
    "max_tokens": 32000,
    "stream": True,
    "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "metadata": {"user_id": "user_x_account__session_y"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "tools": [
        {"name": "weather", "description": "Weather.", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"name": "mcp__" + "x" * 120, "description": "A long name.", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8, "allowed_domains": []},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10000},
        {"type": "memory_20250818", "name": "memory"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}]},
        {"role": "system", "content": "The date has changed."},
        {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {
                    "type": "tool_use",
                    "id": "a",
                    "name": "weather",
                    "input": {"city": "Rome"},
                    "caller": {"type": "direct"},
                },
                {"type": "tool_use", "id": "b", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "12"}],
                    "is_error": False,
                },
                {"type": "tool_result", "tool_use_id": "b", "content": "a.py", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "say thoughtful"},
            ],
        },
    ],
}
BETA = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "anthropic-version": "2023-06-01"}


def test_claude_codes_request_is_answered(server):
    reply = post(server, "/v1/messages?beta=true", CLAUDE_CODE, **BETA)
    assert (reply.headers["x-ballast-ignored"], reply.headers["x-ballast-max-tokens"]) == ("tools.2", "500")
    reported_text = events(reply)
    begun = [event["content_block"] for event in reported_text if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["thinking", "tool_use"]
    assert begun[1]["name"] == "weather"
    arguments = "".join(e["delta"].get("partial_json", "") for e in reported_text if e["type"] == "content_block_delta")
    assert json.loads(arguments) == json.loads(PARIS)
    assert reported_text[-2]["delta"]["stop_reason"] == "tool_use"
    count = {name: value for name, value in CLAUDE_CODE.items() if name not in ("max_tokens", "stream", "metadata")}
    counted = post(server, "/v1/messages/count_tokens?beta=true", count, **BETA).json()["input_tokens"]
    usage = reported_text[0]["message"]["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(("display", "ignored"), [("updates", None), ("as a song", "thinking.display")])
def test_however_an_agent_shows_reasoning_it_is_sent(server, display, ignored):
    thinking = {"type": "adaptive", "display": display}
    reply = post(server, "/v1/messages", CLAUDE_CODE | {"tools": CLAUDE_CODE["tools"][:1], "thinking": thinking})
    assert reply.headers.get("x-ballast-ignored") == ignored
    shown = [e["delta"]["thinking"] for e in events(reply) if e.get("delta", {}).get("type") == "thinking_delta"]
    assert "".join(shown) == "Where?"


def test_a_text_has_an_empty_list_of_citations(server):
    """Anthropic's schema requires a list or null; @ai-sdk/anthropic accepts a list or no key, but not null."""
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "say thought"}]}
    *_, whole = post(server, "/v1/messages", body).json()["content"]
    assert whole == {"type": "text", "text": "It is 4.", "citations": []}
    streamed = events(post(server, "/v1/messages", body | {"stream": True}))
    *_, begun = [each["content_block"] for each in streamed if each["type"] == "content_block_start"]
    assert begun == {"type": "text", "text": "", "citations": []}
    again = body | {"messages": [*body["messages"], {"role": "assistant", "content": [whole]}, *body["messages"]]}
    assert post(server, "/v1/messages", again).status_code == 200


@pytest.mark.parametrize(
    ("kind", "argument"),
    [("bash_20250124", "command"), ("text_editor_20250728", "old_str"), ("memory_20250818", "new_path")],
)
def test_the_schemas_of_anthropics_tools_are_in_the_prompt(server, kind, argument):
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m"}
    plain = post(server, "/v1/messages/count_tokens", body).json()["input_tokens"]
    tools = [{"type": kind, "name": "known"}]
    assert post(server, "/v1/messages/count_tokens", body | {"tools": tools}).json()["input_tokens"] > plain + 100
    hosted = [{"type": "code_execution_20250825", "name": "run"}]
    reply = post(server, "/v1/messages/count_tokens", body | {"tools": hosted})
    assert (reply.json()["input_tokens"], reply.headers["x-ballast-ignored"]) == (plain, "tools.0")
    with ServerProcess("--chat_template", "deepseek-r1", "--unknown_fields", "refuse", module=SCRIPT) as strict:
        refused = httpx.post(strict.url + "/v1/messages/count_tokens", json=body | {"tools": hosted}, timeout=60)
        assert refused.status_code == 400
        assert "tools.0: is of type 'code_execution_20250825'" in refused.json()["error"]["message"]


def test_items_of_hosted_tools_are_left_out_of_the_conversation(server):
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    reported_text = {"role": "assistant", "content": [search, found, {"type": "text", "text": "Found."}]}
    messages = [{"role": "user", "content": "a"}, reported_text, {"role": "user", "content": "say hello"}]
    reply = post(server, "/v1/messages", {"model": "m", "max_tokens": 50, "messages": messages})
    assert reply.headers["x-ballast-ignored"] == "messages.1.content.0, messages.1.content.1"


def test_the_summary_of_a_conversation_is_read(server):
    summary = {"type": "compaction", "content": "We counted to 12.", "encrypted_content": "x"}
    failed = {"type": "compaction", "content": None}

    def prompt_tokens(block):
        messages = [{"role": "assistant", "content": [block]}, {"role": "user", "content": "say hello"}]
        reply = post(server, "/v1/messages", {"model": "m", "max_tokens": 50, "messages": messages})
        assert reply.headers.get("x-ballast-ignored") == ("messages.0.content.0" if block is failed else None)
        usage = reply.json()["usage"]
        return sum(usage.get(name) or 0 for name in PROMPT_COUNTS)

    assert prompt_tokens(summary) == prompt_tokens({"type": "text", "text": "We counted to 12."})
    assert prompt_tokens(failed) < prompt_tokens(summary)


CODEX = {
    "model": "gpt-codex",
    "instructions": "You are a coding agent.",
    "stream": True,
    "store": False,
    "parallel_tool_calls": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"x-codex-installation-id": "1"},
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Run.", "strict": False, "parameters": SCHEMA},
        {
            "type": "custom",
            "name": "patch",
            "description": "A patch.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "web_search", "external_web_access": False},
        {
            "type": "namespace",
            "name": "collaboration",
            "description": "Agents.",
            "tools": [{"type": "function", "name": "spawn_agent", "description": "Spawn.", "parameters": SCHEMA}],
        },
        {"type": "local_shell"},
    ],
}


def developer(text):
    return {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}


HISTORY = [
    developer("<permissions>"),
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}], "id": None},
    {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "xyz"},
    {"type": "function_call", "name": "spawn_agent", "namespace": "collaboration", "arguments": "{}", "call_id": "a"},
    {"type": "function_call_output", "call_id": "a", "output": "spawned"},
    {"type": "custom_tool_call", "status": "completed", "call_id": "b", "name": "patch", "input": "*** Begin Patch"},
    {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "done"}]},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
]


def test_codexs_request_is_answered_and_its_freeform_tool_called(server):
    body = CODEX | {"input": [*HISTORY, developer("say freeform")]}
    reply = post(server, "/v1/responses", body, originator="codex_cli_rs", session_id="1")
    assert reply.headers["x-ballast-ignored"] == "tools.2, tools.4, input.7"
    reported_text = events(reply)
    assert reported_text[-1]["type"] == "response.completed"
    (call,) = (item for item in reported_text[-1]["response"]["output"] if item["type"] != "reasoning")
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "*** Begin Patch\n+ä")
    done = [event for event in reported_text if event["type"] == "response.custom_tool_call_input.done"]
    assert [event["input"] for event in done] == [call["input"]]
    assert reported_text[-1]["response"]["tools"] == CODEX["tools"]


def test_a_tool_of_a_namespace_is_called_by_both_of_its_names(server):
    tool = {"type": "function", "name": "ther", "parameters": SCHEMA}
    body = {
        "input": "say spaced",
        "reasoning": {"effort": "none"},
        "tools": [{"type": "namespace", "name": "wea", "tools": [tool]}],
    }
    with openai_client(server) as client:
        for stream in (False, True):
            made = client.responses.create(model="m", stream=stream, **body)
            whole = list(made)[-1].response if stream else made
            (call,) = whole.output
            assert (call.type, call.name, call.namespace) == ("function_call", "ther", "wea")


def test_tools_that_the_conversation_brings_are_known(server):
    brought = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "patch"}]}
    body = {"input": [brought, developer("say freeform")], "reasoning": {"effort": "none"}}
    *_, call = post(server, "/v1/responses", body).json()["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "patch")


def test_hosted_tools_of_a_chat_are_left_out(server):
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"messages": [{"role": "user", "content": "say call"}], "tools": tools, "reasoning_effort": "none"}
    reply = post(server, "/v1/chat/completions", body)
    assert reply.headers["x-ballast-ignored"] == "tools.0"
    assert reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"


PATCH = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "patch"}}])
def test_a_chats_freeform_tool_is_called_with_a_text(server, choice):
    called = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    body = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "a", "content": "done"},
            {"role": "user", "content": "say freeform"},
        ],
        "tools": [PATCH],
        "tool_choice": choice,
        "reasoning_effort": "none",
        "n": 2,
    }
    reply = post(server, "/v1/chat/completions", body)
    assert "x-ballast-ignored" not in reply.headers
    for choice_ in reply.json()["choices"]:
        (call,) = choice_["message"]["tool_calls"]
        assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": "*** Begin Patch\n+ä"})
    frames = [
        json.loads(line[6:])
        for line in post(server, "/v1/chat/completions", body | {"stream": True}).text.splitlines()
        if line.startswith("data: {")
    ]
    inputs = {0: "", 1: ""}
    for choice_ in (choice for frame in frames for choice in frame["choices"]):
        for call in choice_["delta"].get("tool_calls", ()):
            inputs[choice_["index"]] += call["custom"]["input"]
    assert set(inputs.values()) == {"*** Begin Patch\n+ä"}


@given(st.text(), st.lists(st.integers(1, 5)))
def test_a_freeform_text_is_the_same_for_any_chunks_of_its_arguments(text, sizes):
    for arguments in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
        reader, reported_text, at = InputText(), "", 0
        for size in (*sizes, len(arguments)):
            reported_text += reader.push(arguments[at : at + size])
            at += size
        assert reported_text == custom_input(arguments) == text


def test_the_openai_client_reads_the_events_of_a_freeform_tool(server):
    with openai_client(server) as client:
        body = {
            "input": "say freeform",
            "tools": [{"type": "custom", "name": "patch"}],
            "reasoning": {"effort": "none"},
        }
        kinds = [event.type for event in client.responses.create(model="m", stream=True, **body)]
        assert "response.custom_tool_call_input.delta" in kinds
        (call,) = client.responses.create(model="m", **body).output
        assert isinstance(call, openai.types.responses.ResponseCustomToolCall)
        assert (call.name, call.input) == ("patch", "*** Begin Patch\n+ä")


PICTURE = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
LEFT_OUT = "(image: left out because this model reads only text)"


def picture_of_a_tool(path, note=None):
    """A conversation in which a tool has returned a picture, or `note` instead of it."""
    if path == "/v1/messages":
        reported_text = {"type": "image", "source": PICTURE} if note is None else {"type": "text", "text": note}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [reported_text]}
        call = {"type": "tool_use", "id": "a", "name": "see", "input": {}}
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}]
        return {"model": "m", "max_tokens": 50, "messages": [*messages, {"role": "user", "content": [result]}]}
    if path == "/v1/responses":
        reported_text = (
            {"type": "image", "image_url": "data:"} if note is None else {"type": "input_text", "text": note}
        )
        call = {"type": "function_call", "name": "see", "arguments": "{}", "call_id": "a"}
        result = {"type": "function_call_output", "call_id": "a", "output": [reported_text]}
        return {"input": [{"role": "user", "content": "a"}, call, result]}
    reported_text = {"type": "image", "image_url": {"url": "data:"}} if note is None else {"type": "text", "text": note}
    call = {"id": "a", "type": "function", "function": {"name": "see", "arguments": "{}"}}
    answered = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": [*answered, {"role": "tool", "tool_call_id": "a", "content": [reported_text]}]}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/messages", "messages.2.content.0.content.0"),
        ("/v1/responses", "input.2.output.0"),
        ("/v1/chat/completions", "messages.2.content.0"),
    ],
)
def test_a_picture_in_a_tools_result_is_a_note_to_the_model(server, path, named):
    reply = post(server, path, picture_of_a_tool(path))
    assert reply.headers["x-ballast-ignored"] == named
    noted = post(server, path, picture_of_a_tool(path, LEFT_OUT))
    assert "x-ballast-ignored" not in noted.headers
    sizes = [each.json()["usage"] for each in (reply, noted)]
    requested = [sum(usage.get(name, 0) for name in PROMPT_COUNTS) for usage in sizes]
    assert requested[0] == requested[1]


PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "prompt_tokens")


@pytest.mark.parametrize(
    ("path", "content", "advice"),
    [
        ("/v1/messages", {"type": "image", "source": PICTURE}, "leave the block out"),
        ("/v1/responses", {"type": "input_image", "image_url": "data:"}, "leave the part out"),
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "data:"}}, "leave it out"),
    ],
)
def test_a_users_picture_is_rejected_with_a_fix(server, path, content, advice):
    message = {"role": "user", "content": [content]}
    body = {"model": "m", "max_tokens": 5, "messages": [message], "input": [message]}
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 400
    assert "reads only text" in reply.json()["error"]["message"]
    assert reply.json()["error"]["message"].endswith(advice)


def test_items_of_unknown_tools_are_left_out(server):
    items = [
        developer("say hello"),
        {"type": "local_shell_call", "call_id": "a", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "a", "output": "a.py"},
        {"type": "computer_call_output", "call_id": "b", "output": {"type": "computer_screenshot"}},
    ]
    reply = post(server, "/v1/responses", {"input": items})
    assert reply.headers["x-ballast-ignored"] == "input.1, input.2, input.3"
    body = {"input": [{"type": "item_reference", "id": "msg_1"}]}
    refused = httpx.post(server.url + "/v1/responses", json=body, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].endswith("send the item itself")


def test_allowed_tools_may_name_hosted_ones(server):
    tools = [{"type": "web_search"}, {"type": "custom", "name": "patch"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools}
    body = {"input": "say freeform", "tools": tools, "tool_choice": choice, "reasoning": {"effort": "none"}}
    reply = post(server, "/v1/responses", body)
    assert reply.headers["x-ballast-ignored"] == "tools.0, tool_choice.tools.0"
    assert reply.json()["output"][-1]["name"] == "patch"


def test_a_template_is_applied_without_hosted_tools(server):
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web_search"}, PATCH]}
    reply = post(server, "/apply-template", body)
    assert reply.headers["x-ballast-ignored"] == "tools.0"
    assert "patch" in reply.json()["prompt"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/messages", CLAUDE_CODE | {"stream": False, "output_config": {}}, "tools.2, thinking"),
        ("/v1/messages", {"model": "m", "max_tokens": 5, "output_config": {"effort": "low"}}, "output_config.effort"),
        ("/v1/responses", {"reasoning": {"effort": "medium", "summary": "auto"}}, "reasoning.effort"),
        ("/v1/chat/completions", {"reasoning_effort": "medium"}, "reasoning_effort"),
    ],
)
def test_a_model_without_reasoning_answers_requests_for_reasoning(unthinking, path, body, named):
    message = [{"role": "user", "content": "say hello"}]
    reply = post(unthinking, path, {"messages": message, "input": message} | body)
    reported = reply.headers["x-ballast-ignored"].split(", ")
    assert [name for name in reported if name not in ("input", "messages")] == named.split(", ")


@pytest.fixture(scope="module")
def unthinking():
    options = ("--chat_template", "deepseek-v3", "--max_new_tokens", "50")
    with ServerProcess(*options, module=SCRIPT) as process:
        yield process


def cached(reply):
    return reply.json()["usage"]["cache_read_input_tokens"]


def requested_by_claude_code(number, messages):
    """A request of Claude Code: the first block, for billing, changes with every request."""
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.330.{number}; cch={number:05};"}
    system = [billing, {"type": "text", "text": f"You are an agent. {LONG}"}]
    return {"model": "m", "max_tokens": 5, "system": system, "messages": messages}


LONG = "Work with care, and say what you do. " * 20


def test_a_late_system_message_leaves_the_cached_prefix_as_it_was(server):
    messages = [{"role": "user", "content": "say hello"}, {"role": "system", "content": "100 tokens left"}]
    counts = []
    for number in range(3):
        counts.append(cached(post(server, "/v1/messages", requested_by_claude_code(number, messages))))
        messages += [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "say hello"}]
        messages += [{"role": "system", "content": f"{number} tokens left"}]
    assert counts[0] < 100 < counts[1] < counts[2]


def test_the_block_for_a_providers_billing_is_not_in_the_prompt(server):
    body = requested_by_claude_code(1, [{"role": "user", "content": "a"}])
    without = body | {"system": body["system"][1:]}
    sizes = [post(server, "/v1/messages/count_tokens", each).json()["input_tokens"] for each in (body, without)]
    assert sizes[0] == sizes[1]


READ = "[file name]: a.txt\n[file content begin]\nThe key is 7.\n[file content end]"
BASE64 = "VGhlIGtleSBpcyA3Lg=="


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/messages", {"type": "document", "title": "a.txt", "source": {"type": "text", "data": "The key is 7."}}),
        (
            "/v1/messages",
            {
                "type": "document",
                "title": "a.txt",
                "source": {"type": "content", "content": [{"type": "text", "text": "The key is 7."}]},
            },
        ),
        ("/v1/messages", {"type": "document", "title": "a.txt", "source": {"type": "base64", "data": BASE64}}),
        (
            "/v1/messages",
            {"type": "search_result", "source": "a.txt", "content": [{"type": "text", "text": "The key is 7."}]},
        ),
        ("/v1/chat/completions", {"type": "file", "file": {"filename": "a.txt", "file_data": BASE64}}),
        (
            "/v1/chat/completions",
            {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{BASE64}"}},
        ),
        (
            "/v1/responses",
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain,The%20key%20is%207."},
        ),
    ],
)
def test_a_file_that_holds_a_text_is_read(server, path, part):
    sizes = []
    for content in ([part, text_part(path, "say hello")], [text_part(path, READ), text_part(path, "say hello")]):
        message = {"role": "user", "content": content}
        body = {"model": "m", "max_tokens": 5, "messages": [message], "input": [message]}
        body.pop("messages" if path == "/v1/responses" else "input")
        if path == "/v1/responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        reply = post(server, path, body)
        assert "x-ballast-ignored" not in reply.headers
        usage = reply.json()["usage"]
        sizes.append(sum(usage.get(name, 0) for name in PROMPT_COUNTS))
    assert sizes[0] == sizes[1]


def text_part(path, text):
    return {"type": "input_text" if path == "/v1/responses" else "text", "text": text}


PDF = "JVBERi0xLjQK"


@pytest.mark.parametrize(
    ("path", "part", "why"),
    [
        (
            "/v1/messages",
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
            r"messages.0.content.0.source.data: this model reads only text",
        ),
        (
            "/v1/messages",
            {"type": "document", "source": {"type": "url", "url": "http://a"}},
            "source.url: files are not fetched",
        ),
        (
            "/v1/chat/completions",
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}},
            "pdf is not",
        ),
        (
            "/v1/chat/completions",
            {"type": "file", "file": {"file_id": "f"}},
            "file.file_id: this server does not store files",
        ),
        ("/v1/chat/completions", {"type": "file", "file": {"file_data": "?"}}, "neither base64 nor"),
        ("/v1/responses", {"type": "input_file", "file_url": "http://a"}, "file_url: files are not fetched"),
    ],
)
def test_a_file_without_a_text_is_refused_by_name(server, path, part, why):
    message = {"role": "user", "content": [part]}
    body = {"input": [message]} if path == "/v1/responses" else {"model": "m", "max_tokens": 5, "messages": [message]}
    reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 400
    assert why in reply.json()["error"]["message"]


def test_ignored_document_citations_are_reported(server):
    document = {"type": "document", "source": {"type": "text", "data": "a"}, "citations": {"enabled": True}}
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [document]}]}
    assert post(server, "/v1/messages", body).headers["x-ballast-ignored"] == "messages.0.content.0.citations"
