"""Training of the built-in model: its corpus excludes the examination, and the trained model is the served one."""

import hashlib
import itertools
import json
from dataclasses import replace

import gguf.quants
import numpy as np
import pytest
import torch
import transformers

from ballast.text.chat_template import ChatTemplate, force_think
from ballast.tiny import BUILT_IN
from ballast.tiny.hf_config import hf_config
from ballast.tiny.quant_mix import types_for
from ballast.tiny.spec import spec_of
from ballast.tiny.tokenizer import BOS, EOS, make_tokenizer
from ballast.weights.quantize import quantize
from devkit.oracles.hf_oracle import hf_weights
from tools.tiny_model.batches import Batches, most_documents
from tools.tiny_model.corpus.conversation import messages, pieces
from tools.tiny_model.corpus.draw import Draw, is_held_out
from tools.tiny_model.corpus.exam import Reply, examination
from tools.tiny_model.corpus.facts import facts
from tools.tiny_model.corpus.mixture import corpus
from tools.tiny_model.evaluate import Answer, is_right, rendered
from tools.tiny_model.fake_quant import rounded
from tools.tiny_model.network import Network
from tools.tiny_model.shape import LONGEST, QUANT, SHAPE
from tools.tiny_model.train import Settings, Training, save


def asked_in(conversation):
    """All text of the user, and whether there are tools."""
    return tuple(turn.user.lower() for turn in conversation.turns), bool(conversation.tools)


def test_exam_questions_are_not_in_the_training_data():
    asked = {asked_in(item.conversation) for item in examination(7, 200)}
    trained = set()
    for conversation, _ in itertools.islice(corpus(1), 40_000):
        users, tools = asked_in(conversation)
        trained.add((users, tools))
        trained.update(((user,), tools) for user in users)
    assert len(asked) > 2500
    assert not asked & trained


def test_the_corpus_is_the_one_that_the_shipped_weights_saw():
    digest = hashlib.sha256()
    for conversation, think in itertools.islice(corpus(1_000_000), 3000):
        for piece in pieces(conversation, think=think):
            digest.update(f"{piece.ours}{piece.text}".encode())
    # A changed corpus requires new training, or a note in the model card, which claims that its command makes these
    # weights.
    assert digest.hexdigest() == "e1cbbc258b381eed7044258a053259fd3298073c229942e5b1402e8605560866"


def test_a_tool_reserved_for_the_exam_is_never_used_in_training():
    trained = {tool["name"] for conversation, _ in itertools.islice(corpus(1), 40_000) for tool in conversation.tools}
    asked = {item.conversation.turns[-1].calls[0].name for item in examination(7, 100) if item.task.endswith("tools")}
    assert {"search", "read_file"} <= asked
    assert len(asked) > 60
    assert not asked & trained


def test_some_wordings_are_kept_for_the_examination():
    ways = tuple(f"way {number}" for number in range(12))
    sides = [{Draw(seed, new_words=new).wording(ways) for seed in range(300)} for new in (False, True)]
    assert sides[0] | sides[1] == set(ways)
    assert sides[1] == {"way 2", "way 10"}
    assert not sides[0] & sides[1]
    assert Draw(1, new_words=True).wording(("one", "other")) in ("one", "other")


def test_one_fact_in_ten_is_reserved_for_the_exam():
    pairs = list(itertools.product(range(10, 100), repeat=2))
    held = [pair for pair in pairs if is_held_out("+", *pair)]
    assert 0.08 < len(held) / len(pairs) < 0.12
    for item in examination(3, 50):
        if item.task.startswith("addition"):
            a, _, b, _, _ = item.conversation.turns[0].reply.split()
            assert (int(a), int(b)) in held


def test_every_answer_about_ballast_holds_its_keys():
    for fact in facts():
        assert fact.keys
        assert fact.exam
        assert all(key in answer for answer in fact.say for key in fact.keys), fact
        assert all(key in answer for answer in fact.say_zh for key in fact.keys_zh), fact


def test_replies_are_graded_correctly():
    for item in examination(5, 30):
        turn = item.conversation.turns[-1]
        assert item.is_right(Reply("" if turn.calls else turn.reply, turn.calls)), turn
        assert not item.is_right(Reply("")), turn
        if turn.calls:
            (call,) = turn.calls
            first = next(iter(call.arguments))
            for other in (
                replace(call, name=f"{call.name}s"),
                replace(call, arguments={**call.arguments, first: "another"}),
                replace(call, arguments={**call.arguments, "more": 1}),
                replace(call, arguments=None),
            ):
                assert not item.is_right(Reply("", (other,))), turn
            assert not item.is_right(Reply("", (call, call))), turn
            assert not item.is_right(Reply("Sure.", (call,))), turn
        elif item.task.startswith(("copying", "sorting", "remembering", "valid", "right")):
            assert not item.is_right(Reply(turn.reply[:-1])), turn


def test_a_reply_passes_only_if_complete_and_with_reasoning_as_requested():
    thinking, plain = (next(item for item in examination(5, 2) if item.think == think) for think in (True, False))
    right = Reply(thinking.conversation.turns[-1].reply)
    assert is_right(thinking, Answer(right, "So.", is_whole=True))
    assert not is_right(thinking, Answer(right, None, is_whole=True))
    assert not is_right(thinking, Answer(right, "So.", is_whole=False))
    right = Reply(plain.conversation.turns[-1].reply)
    assert is_right(plain, Answer(right, None, is_whole=True))
    assert not is_right(plain, Answer(right, "So.", is_whole=True))


def test_training_text_equals_the_chat_templates_output():
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


TOKENIZER = str(BUILT_IN.config_dir / "tokenizer.json")


def test_a_batch_contains_whole_documents_and_trains_only_on_replies():
    ids, targets, positions, starts = Batches(TOKENIZER, 1, 8192, 1)[0]
    starts = starts[: most_documents(8192) + 1]
    assert starts[0] == 0
    assert starts[-1] == 8192
    assert 0 <= np.diff(starts).min() <= np.diff(starts).max() <= LONGEST
    begins = np.unique(starts[starts < 8192])
    assert (positions == np.arange(8192) - begins[np.searchsorted(begins, np.arange(8192), side="right") - 1])[
        : begins[-1]
    ].all()
    assert (ids[begins] == 0).all()
    trained = np.nonzero(targets >= 0)[0]
    assert 0.2 < len(trained) / 8192 < 0.6
    assert (ids[trained + 1] == targets[trained]).all()
    assert not np.isin(trained + 1, begins).any()


def test_a_batch_depends_on_its_seed_and_number_alone():
    batches = Batches(TOKENIZER, 1, 2048, 3)
    second = batches[1]
    assert (Batches(TOKENIZER, 1, 2048, 3)[1] == second).all()
    assert (batches[2] != second).any()
    assert (Batches(TOKENIZER, 2, 2048, 3)[1] != second).any()


def test_a_few_steps_make_the_loss_fall():
    settings = Settings(steps=4, tokens=1024, rate=1e-3, warm_up=1, round_from=0.5)
    torch.manual_seed(0)
    network = Network(replace(SHAPE, num_layers=2), 4544)
    training = Training(network, settings, torch.device("cpu"), compiled=False)
    batch = torch.from_numpy(Batches(TOKENIZER, 1, 1024, 1)[0])
    losses = [training.advance(step, batch)[0].item() for step in range(settings.steps)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1
    assert any(block.exp_probs_b.bias.any() for block in network.blk if not block.dense)


def test_training_ends_by_steps_or_time_with_a_learning_rate_of_zero():
    settings = Settings(steps=100, warm_up=1, decay_from=0.5, rate=1.0, seconds=10.0)
    assert settings.done(100, 1.0) == 1
    assert settings.done(20, 10.0) == 1
    assert [settings.rate_at(20, settings.done(20, seconds)) for seconds in (2.0, 7.5, 10.0)] == [1.0, 0.5, 0.0]
    assert replace(settings, seconds=0.0).done(50, 1e9) == 0.5


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = Network(replace(SHAPE, num_layers=2), 512)
    for block in made.blk:
        if not block.dense:
            block.exp_probs_b.bias.normal_(0, 0.3)
    return made


def test_weights_store_sizes_that_differ_from_the_built_in_model(network, tmp_path):
    save(network, tmp_path / "weights.npz")
    with np.load(tmp_path / "weights.npz") as stored:
        assert json.loads(str(stored["shape"])) == {"num_layers": 2}
        assert set(stored.files) == {*network.state_dict(), "shape"}


def test_the_trained_network_is_transformers_deepseek_v3(network):
    shape = replace(SHAPE, num_layers=2)
    config = transformers.DeepseekV3Config.from_dict(
        hf_config(shape, make_tokenizer("v3"), 512),
        attn_implementation="eager",
        experts_implementation="eager",
        dtype="float32",
    )
    oracle = transformers.DeepseekV3ForCausalLM(config).eval()
    weights = hf_weights({name: value.numpy() for name, value in network.state_dict().items()})
    oracle.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=True)
    ids = torch.arange(3, 33)[None]
    with torch.inference_mode():
        # The second half is a separate document.
        starts = torch.tensor([0, 15, 30, 30], dtype=torch.int32)
        hidden, loads = network(ids[0], (ids[0] - 3) % 15, starts, network.matrices())
        ours = hidden @ network.output.weight.T
        theirs = torch.cat([oracle(input_ids=part, use_cache=False).logits for part in ids.split(15, 1)], 1)
    assert (ours - theirs).abs().max() < 1e-4
    assert loads.sum() == 30 * shape.num_experts_used


def test_training_rounds_as_the_file_does(network):
    exact, types = network.matrices(), types_for(spec_of(network.shape, 1, "split"), QUANT)
    for name, value in rounded(exact, network.shape, QUANT).items():
        if "attn_kv_b" in name:
            heads = value.unflatten(0, (SHAPE.num_heads, -1))[:, : SHAPE.nope_dim].transpose(1, 2)
            value, before = heads, exact[name].unflatten(0, (SHAPE.num_heads, -1))[:, : SHAPE.nope_dim].transpose(1, 2)
            name = name.replace("kv_b", "k_b")
        else:
            before = exact[name]
        kind = types[name]
        stored = quantize(np.ascontiguousarray(before.detach().numpy()), kind)
        read = gguf.quants.dequantize(stored, kind).reshape(before.shape)
        np.testing.assert_allclose(value.detach().numpy(), read, rtol=1e-5, atol=1e-7)
