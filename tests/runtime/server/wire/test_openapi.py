"""/openapi.json is accurate: every request that it allows gets a reply as described."""

import json

import httpx
import hypothesis
import jsonschema_rs
import openai
import openai.types.chat as openai_chat
import openai.types.shared
import pytest
import schemathesis
from schemathesis import checks

from ballast.server.http.access import PROBED_PATHS
from ballast.wire.schemas import ChatCompletion, ModelList, TextCompletion
from devkit.long import times
from devkit.servers.process import FAKE, ServerProcess

OPTIONS = ("--max_new_tokens", "4", "--max_batch_size", "8", "--max_queue", "4096")


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*OPTIONS, module=FAKE) as process:
        yield process
        process.wait_until_empty()
        assert process.get("/livez")[0] == 200


CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
BOUNDED = hypothesis.settings(
    max_examples=times(4, 40),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_operation_keeps_to_its_description(server, mode):
    """Sends bodies that the description allows, and invalid ones."""
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 13
    for operation in operations:
        if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
            continue  # no field can be invalid

        @BOUNDED
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def keeps_to_it(case):
            case.call_and_validate(checks=CHECKS, timeout=60)

        keeps_to_it()


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("name", "f", 5),
        ("name", "f", "a b"),
        ("description", None, 5),
        ("parameters", None, []),
        ("parameters", {}, "{}"),
        ("parameters", True, False),
        ("parameters", {"type": ["object", "null"]}, {"type": "string"}),
        ("parameters", {"type": None}, {"type": ["string"]}),
        ("strict", None, 1),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_the_description_of_a_tool_is_as_strict_as_the_server(server, path, field, good, bad):
    api = httpx.get(server.url + "/openapi.json", timeout=60).json()
    described = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**described, "components": api["components"]})
    body = {"model": "alphabet", "messages": [{"role": "user", "content": "a"}]}
    for value, is_right in ((good, True), (bad, False)):
        tool = {"type": "function", "function": {"name": "f", field: value}}
        sent = {**body, "tools": [tool], "stream": False}
        assert validator.is_valid(sent) is is_right
        # The server has no template for tools; it reports that after it has validated them.
        message = httpx.post(server.url + path, json=sent, timeout=60).text
        assert (f"function.{field}" in message) is not is_right


def test_the_description_names_every_route_and_every_field(server):
    document = json.loads(server.get("/openapi.json")[2])
    assert document["info"]["title"] == "Ballast"
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/metrics"} <= set(document["paths"])
    chat = document["components"]["schemas"]["ChatCompletionRequest"]
    assert {"messages", "temperature", "max_completion_tokens", "stream"} <= set(chat["properties"])
    assert chat["required"] == ["messages"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"200", "500", "503"} <= set(operation["responses"])
            refusals = {"401", "403", "421"} & set(operation["responses"])
            assert refusals == (set() if path in PROBED_PATHS else {"401", "403", "421"})


CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2, "n": 2, "logprobs": True, "top_logprobs": 2}
TEXT = {"prompt": ["abc", "de"], "max_tokens": 2, "logprobs": 2, "echo": True}


@pytest.mark.parametrize(
    ("path", "body", "kinds", "chunk"),
    [
        ("/v1/chat/completions", CHAT, (ChatCompletion, openai_chat.ChatCompletion), openai_chat.ChatCompletionChunk),
        ("/v1/completions", TEXT, (TextCompletion, openai.types.Completion), openai.types.Completion),
    ],
)
def test_replies_have_the_described_shapes_and_openais(server, path, body, kinds, chunk):
    """OpenAI's schemas are the models of its client, with strict validation."""
    whole = httpx.post(server.url + path, json=body, timeout=60)
    assert whole.status_code == 200
    for kind in kinds:
        kind.model_validate_json(whole.content, strict=True)
    sent = body | {"stream": True, "stream_options": {"include_usage": True}}
    stream = httpx.post(server.url + path, json=sent, timeout=60)
    frames = stream.text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
    assert len(frames) > 4
    for frame in frames:
        if '"finish_reason":null' in frame and chunk is openai.types.Completion:
            continue  # the client's model has no text chunks: it requires a finish reason in each
        chunk.model_validate_json(frame.removeprefix("data: "), strict=True)


def test_models_and_errors_have_openais_shapes(server):
    models = server.get("/v1/models")[2]
    ModelList.model_validate_json(models, strict=True)
    for card in json.loads(models)["data"]:
        openai.types.Model.model_validate(card, strict=True)
    error = httpx.post(server.url + "/v1/completions", json={"prompt": 5}, timeout=60).json()["error"]
    openai.types.shared.ErrorObject.model_validate(error, strict=True)
