"""The launch command and the request of the release note that Ballast implements, verbatim."""

import http.client
import json
import os

import pytest

from devkit.models.written import write_tiny_model
from devkit.servers.command import ballast
from devkit.servers.process import ServerProcess

RULES = """\
- match:
    name: "^model\\\\.layers\\\\..*\\\\.mlp\\\\.experts$"
  replace:
    class: ktransformers.operators.experts.KTransformersExpertsV2
    kwargs:
      generate_device: "cpu"
  recursive: False
"""

BODY = """{
  "messages": [
    {"role": "user", "content": "hello"}
  ],
  "model": "DeepSeek-R1",
  "temperature": 0.3,
  "top_p": 1.0,
  "stream": true
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def test_the_seed_command_starts_a_server_that_answers_the_seed_request(model, tmp_path):
    rules = tmp_path / "DeepSeek-V3-Chat-serve.yaml"
    rules.write_text(RULES)
    options = [
        *("--model_path", str(model.config_dir)),
        *("--gguf_path", str(model.gguf)),
        *("--optimize_config_path", str(rules)),
        *("--max_new_tokens", "1024"),
        *("--cache_lens", "32768"),
        *("--chunk_size", "256"),
        *("--max_batch_size", "4"),
        *("--backend_type", "balance_serve"),
        "--force_think",
    ]
    with ServerProcess(*options) as server:
        assert "3 modules" in server.event("placement")["rule"]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        headers = {"accept": "application/json", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", BODY, headers)
        response = connection.getresponse()
        frames = response.read().decode().split("\n\n")
        connection.close()
    assert response.status == 200
    assert frames[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {chunk["model"] for chunk in chunks} == {"DeepSeek-R1"}
    assert chunks[1]["choices"][0]["delta"].keys() == {"reasoning_content"}, "the reply begins inside <think>"
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model_path", "deepseek-ai/DeepSeek-R1"], "expected a local directory"),
        (["--max_new_tokens", "1024", "--cache_lens", "4096"], "the smallest cache_lens that passes is 4097"),
    ],
)
def test_unsafe_seed_options_are_rejected_before_loading(options, sentence):
    ended = ballast(["serve", *options], os.environ)
    assert ended.returncode == 2
    assert sentence in ended.stderr


def test_a_placement_rule_that_matches_nothing_is_refused(model, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.replace("experts$", "nothing$"))
    ended = ballast(["serve", "--gguf_path", str(model.gguf), "--optimize_config_path", str(rules)], os.environ)
    assert ended.returncode == 2
    assert "nothing$" in ended.stderr
