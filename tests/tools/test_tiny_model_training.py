"""The built-in model's making: its corpus keeps the examination apart, and what is trained is what is served."""

import itertools
import json
from dataclasses import replace

import gguf.quants
import numpy as np
import pytest
import torch
from tools.tiny_model.corpus.conversation import messages, pieces
from tools.tiny_model.corpus.draw import is_held_out
from tools.tiny_model.corpus.exam import examination
from tools.tiny_model.corpus.facts import facts
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.evaluate import rendered
from tools.tiny_model.fake_quant import rounded
from tools.tiny_model.network import Network
from tools.tiny_model.rows import Rows
from tools.tiny_model.shape import QUANT, ROW_TOKENS, SHAPE
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from ballast.testing.hf_oracle import hf_weights
from ballast.text.chat_template import ChatTemplate, force_think
from ballast.tiny import BUILT_IN
from ballast.tiny.metadata import hf_config
from ballast.tiny.quant_mix import type_for
from ballast.tiny.tokenizer import BOS, EOS, make_tokenizer
from ballast.weights.quantize import quantize


def test_nothing_of_the_examination_is_trained_on():
    asked = {item.conversation.turns[-1].user.lower() for item in examination(7, 200)}
    trained = set()
    for conversation, _ in itertools.islice(corpus(1), 40_000):
        trained.update(turn.user.lower() for turn in conversation.turns)
    assert len(asked) > 1000
    assert not asked & trained


def test_one_in_ten_is_held_out_and_only_the_examination_may_draw_it():
    pairs = list(itertools.product(range(10, 100), repeat=2))
    held = [pair for pair in pairs if is_held_out("+", *pair)]
    assert 0.08 < len(held) / len(pairs) < 0.12
    for item in examination(3, 50):
        if item.task == "addition":
            a, _, b, _, _ = item.conversation.turns[0].reply.split()
            assert (int(a), int(b)) in held


def test_every_answer_about_ballast_holds_its_keys():
    for fact in facts():
        assert fact.keys
        assert fact.exam
        assert all(key in answer for answer in fact.say for key in fact.keys), fact
        assert all(key in answer for answer in fact.say_zh for key in fact.keys_zh), fact


def test_right_replies_are_judged_right_and_cut_ones_wrong():
    for item in examination(5, 30):
        turn = item.conversation.turns[-1]
        reply = turn.reply
        if turn.calls:
            reply = f"<｜tool▁calls▁begin｜>{''.join(call.text for call in turn.calls)}<｜tool▁calls▁end｜>"
        assert item.is_right(reply), turn
        assert not item.is_right(""), turn
        if item.task != "about Ballast":
            assert not item.is_right(reply[:-1] + ("x" if reply[-1:].isdigit() else "")) or item.task == "counting"


def test_training_text_is_what_the_chat_template_writes():
    config = json.loads((BUILT_IN.config_dir / "tokenizer_config.json").read_text())
    template = ChatTemplate(config["chat_template"], bos_token=BOS, eos_token=EOS)
    with_calls = 0
    for conversation, think in itertools.islice(corpus(2), 400):
        text, last = "", conversation.turns[-1].user
        for piece in pieces(conversation, think=think):
            if piece.ours and last in text.rpartition("<｜User｜>")[2]:
                break
            text += piece.text
        prompt = template.render(messages(conversation), tools=conversation.tools)
        with_calls += "<｜tool▁outputs▁end｜>" in prompt
        assert (force_think(prompt) if think else prompt) == text
    assert with_calls
    assert all(rendered(item).endswith(("<｜Assistant｜>", "<think>\n")) for item in examination(1, 2))


def test_rows_hold_whole_documents_and_train_the_models_words_only():
    ids, targets, positions, documents = next(iter(Rows(str(BUILT_IN.config_dir / "tokenizer.json"), 1, 4)))
    assert ids.shape == (4, ROW_TOKENS)
    assert (ids[positions == 0] == 0)[documents[positions == 0] >= 0].all()
    trained = targets >= 0
    assert 0.2 < trained.mean() < 0.7
    rows, columns = np.nonzero(trained)
    assert (ids[rows, columns + 1] == targets[rows, columns]).all()
    assert (documents[rows, columns + 1] == documents[rows, columns]).all()


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = Network(replace(SHAPE, num_layers=2), 512)
    for block in made.blk:
        if not block.dense:
            block.exp_probs_b.bias.normal_(0, 0.3)
    return made


def test_the_trained_network_is_transformers_deepseek_v3(network):
    shape = replace(SHAPE, num_layers=2)
    config = DeepseekV3Config.from_dict(
        hf_config(shape, make_tokenizer("v3"), 512),
        attn_implementation="eager",
        experts_implementation="eager",
        dtype="float32",
    )
    oracle = DeepseekV3ForCausalLM(config).eval()
    weights = hf_weights({name: value.numpy() for name, value in network.state_dict().items()})
    oracle.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=True)
    ids = torch.arange(3, 33)[None]
    with torch.inference_mode():
        # The second half is a document of its own, as in a packed row.
        documents, positions = (ids >= 18).long(), (ids - 3) % 15
        hidden, loads = network(ids, positions, documents, network.matrices())
        ours = hidden @ network.output.weight.T
        theirs = torch.cat([oracle(input_ids=part, use_cache=False).logits for part in ids.split(15, 1)], 1)
    assert (ours - theirs).abs().max() < 1e-4
    assert loads.sum() == 30 * shape.num_experts_used


def test_training_rounds_as_the_file_does(network):
    exact = network.matrices()
    for name, value in rounded(exact, network.shape, QUANT).items():
        if "attn_kv_b" in name:
            heads = value.unflatten(0, (SHAPE.num_heads, -1))[:, : SHAPE.nope_dim].transpose(1, 2)
            value, before = heads, exact[name].unflatten(0, (SHAPE.num_heads, -1))[:, : SHAPE.nope_dim].transpose(1, 2)
            name = name.replace("kv_b", "k_b")
        else:
            before = exact[name]
        kind = type_for(name, before.ndim, before.shape[-1], QUANT)
        stored = quantize(np.ascontiguousarray(before.detach().numpy()), kind)
        read = gguf.quants.dequantize(stored, kind).reshape(before.shape)
        np.testing.assert_allclose(value.detach().numpy(), read, rtol=1e-5, atol=1e-7)
