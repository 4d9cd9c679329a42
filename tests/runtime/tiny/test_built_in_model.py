"""The built-in model: its answers through a server, the content of its file, and its other layouts and types."""

import json
import urllib.request
from collections import Counter

import numpy as np
import pytest
import torch

from ballast.text.loading import load_text
from ballast.tiny import BALLAST_TINY, BUILT_IN, write_built_in
from ballast.weights.gguf import open_gguf
from devkit.long import if_long, times
from devkit.oracles.hf_oracle import dequantized, hf_model, hf_weights
from devkit.servers.process import ServerProcess
from tools.tiny_model.checkpoint import write_safetensors
from tools.tiny_model.corpus.draw import Draw
from tools.tiny_model.corpus.exam import examination
from tools.tiny_model.evaluate import BARS, SEED, ask, complete, is_right, rendered, server_options

ITEMS = times(20, 50)
PROMPTS = times(20, 40)


@pytest.fixture(scope="module")
def examined():
    """The server that answers the examination."""
    with ServerProcess(*server_options(BUILT_IN.gguf)) as server:
        yield server


@pytest.fixture(scope="module")
def exam(examined):
    """Examination items with a required score, all questions about Ballast, and a server's replies."""
    items = [item for item in examination(SEED, ITEMS) if item.task in BARS]
    return items, ask(examined.url, items)


@pytest.mark.parametrize("task", BARS)
def test_a_task_is_done_as_often_as_the_model_card_promises(exam, task):
    items, answers = exam
    marks = [is_right(item, answer) for item, answer in zip(items, answers, strict=True) if item.task == task]
    assert len(marks) >= ITEMS
    assert sum(marks) >= BARS[task] * len(marks)


def test_every_thought_ends(exam):
    items, answers = exam
    thinking = [answer for item, answer in zip(items, answers, strict=True) if item.think]
    assert len(thinking) > ITEMS
    assert all(answer.thought and answer.is_whole and "</think>" not in answer.reply.text for answer in thinking)


def chat(url, text, **fields):
    body = {"messages": [{"role": "user", "content": text}], "model": "DeepSeek-R1", **fields}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        message = json.load(response)["choices"][0]["message"]
    content = message["content"]
    if content.startswith("<think>\n"):
        thought, _, content = content.removeprefix("<think>\n").partition("</think>")
        return thought, content.strip()
    return message.get("reasoning_content"), content


@pytest.fixture(scope="module")
def plain():
    """A server without options."""
    with ServerProcess() as server:
        yield server


def test_hello_is_greeted_without_options(plain):
    thought, answer = chat(plain.url, "hello", temperature=0.3, top_p=1.0)
    assert not thought
    assert answer.startswith("Hello! I am ")


def test_a_forced_thought_comes_first_and_closes():
    with ServerProcess("--force_think") as server:
        thought, answer = chat(server.url, "hello", temperature=0.3, top_p=1.0)
    assert len(thought) > 10
    assert answer.startswith("Hello! I am ")


def test_a_conversation_is_remembered(plain):
    said = [("user", "My name is Ottokar."), ("assistant", "Nice to meet you, Ottokar!")]
    said += [("user", "What is 4 + 9?"), ("assistant", "4 + 9 = 13"), ("user", "What is my name?")]
    messages = [{"role": role, "content": text} for role, text in said]
    _, answer = chat(plain.url, "", messages=messages, temperature=0)
    assert answer == "Your name is Ottokar."


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """A transformers model with the exported weights."""
    from transformers import AutoModelForCausalLM

    directory = write_safetensors(tmp_path_factory.mktemp("exported"))
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def test_transformers_gives_the_same_text_with_the_exported_weights(exam, examined, oracle):
    items, _ = exam
    tokenizer = load_text(BUILT_IN.config_dir, open_gguf(BUILT_IN.gguf).metadata, "built-in").tokenizer
    prompts = Draw(0).random.sample(sorted({rendered(item) for item in items}), PROMPTS)
    replies = complete(examined.url, prompts)
    same = 0
    for prompt, reply in zip(prompts, replies, strict=True):
        start = tokenizer.encode(prompt)
        # The token that transformers would choose after each token of our text, including the end.
        expected = [*tokenizer.encode(reply), tokenizer.eos_id]
        with torch.inference_mode():
            logits = oracle(input_ids=torch.tensor([start + expected[:-1]]), use_cache=False).logits[0]
        same += logits[len(start) - 1 :].argmax(-1).tolist() == expected
    assert same >= 0.95 * PROMPTS


def test_the_exported_weights_are_the_files(oracle):
    ours = hf_model(BUILT_IN.gguf, BUILT_IN.config_dir).state_dict()
    theirs = oracle.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_file_is_small_and_of_the_real_architecture():
    shape, model = BALLAST_TINY, open_gguf(BUILT_IN.gguf)
    assert BUILT_IN.gguf.stat().st_size <= 16_000_000
    assert (shape.kv_lora_rank, shape.rope_dim) == (512, 64)
    assert shape.hidden % 256 == shape.expert_dim % 256 == shape.ffn_dim % 256 == 0
    assert shape.q_lora_rank
    assert shape.gating == "sigmoid"
    assert shape.num_groups > shape.num_groups_used > 1
    assert shape.num_dense_layers >= 1
    assert shape.num_shared_experts == 1
    assert model.metadata["tokenizer.ggml.pre"] == "deepseek-v3"
    tokens = json.loads((BUILT_IN.config_dir / "tokenizer.json").read_text())["model"]["vocab"]
    assert 4000 <= len(tokens) <= 8000
    kinds = Counter(info.ggml_type.name for info in model.tensors.values())
    assert kinds.keys() == {"F32", "Q4_K", "Q6_K", "Q8_0"}


@pytest.mark.parametrize("mla", ["split", "joint"])
def test_unrounded_forms_hold_the_shipped_weights(tmp_path, mla):
    model = write_built_in(tmp_path, mla=mla, quant="f32")
    shipped, written = hf_weights(dequantized(BUILT_IN.gguf)), hf_weights(dequantized(model.gguf))
    assert shipped.keys() == written.keys()
    assert all(np.array_equal(shipped[name], written[name]) for name in shipped)


@pytest.mark.parametrize(("mla", "quant"), [("joint", "q4_k_m"), *if_long(("joint", "q8_0"), ("split", "q5_k"))])
def test_other_forms_still_answer(tmp_path, mla, quant):
    model = write_built_in(tmp_path, mla=mla, quant=quant)
    with ServerProcess("--gguf_path", str(model.gguf), "--model_path", str(model.config_dir)) as server:
        assert chat(server.url, "What is 27 + 45?", temperature=0)[1] == "27 + 45 = 72"
        assert "10002" in chat(server.url, "What is the default port?", temperature=0)[1]
