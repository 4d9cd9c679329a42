"""Arguments of vLLM's `LLM`, its methods and its `SamplingParams`: supported, or rejected by name with an
alternative."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from ballast import LLM, AsyncLLM, GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from ballast.errors import ConfigError, RequestError
from ballast.library.vllm_options import FIXED, RENAMED

SMALL: dict[str, Any] = {"cache_lens": 1024, "max_new_tokens": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=3)


def test_arguments_for_default_behaviour_are_accepted() -> None:
    with LLM(
        **SMALL,
        max_model_len=512,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        seed=0,
        dtype="auto",
        gpu_memory_utilization=0.9,
        trust_remote_code=True,
        enforce_eager=True,
        enable_prefix_caching=True,
        quantization=None,
        load_format="gguf",
        swap_space=0,
        disable_log_stats=True,
        block_size=32,
    ) as llm:
        assert llm.generate("1 + 1 =", GREEDY)[0].finished


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2: GPUs divide the layers; leave it out, and name them"),
        ({"data_parallel_size": 2}, "data_parallel_size=2: there is one engine, in this process; leave it out"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True"),
        ({"dtype": "bfloat16"}, "dtype=bfloat16: the model's file defines it"),
        ({"quantization": "awq"}, "quantization=awq: the model's file defines it"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5: must be a fraction"),
        ({"gpu_memory_utilization": "0.9"}, "gpu_memory_utilization=0.9: must be a fraction"),
        (
            {"gpu_memory_utilization": 0.5, "vram_limit": "1GiB"},
            "gpu_memory_utilization=0.5: sets the same limit as vram_limit",
        ),
        ({"seed": -1}, "seed=-1: must be a whole number of at least 0, or None"),
        ({"seed": "a"}, "seed=a: must be a whole number"),
        ({"max_model_len": 0}, "max_model_len=0: must be a whole number of at least 1"),
        ({"max_model_len": 10**7}, "max_model_len=10000000: the model's context is .* tokens; lower it"),
        ({"max_model_len": 1025, **SMALL}, "max_model_len=1025: the KV cache holds 1024 tokens; .*raise cache_lens"),
        ({"max_num_batched_tokens": 512}, "max_num_batched_tokens=512: see chunk_size"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching=False: the prefix cache is always on"),
        ({"revision": "main"}, "revision=main: .*ballast pull"),
        ({"enable_lora": True}, "enable_lora=True: adapters are not supported"),
        ({"block_size": 32, "block_tokens": 64}, "block_tokens=64: is the same as block_tokens, which is also given"),
        ({"model": "/a", "gguf_path": "/b"}, "which is also given"),
        ({"max_model_length": 5}, "max_model_length=5: no such option"),
    ],
    ids=str,
)
def test_other_values_are_rejected_by_name_with_a_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(**options)


def test_no_argument_is_both_fixed_and_an_option() -> None:
    from ballast.config.options import OPTIONS

    assert not FIXED.keys() & {option.name for option in OPTIONS}
    assert set(RENAMED.values()) <= {option.name for option in OPTIONS}


def test_max_model_len_bounds_a_prompt_and_its_reply() -> None:
    with LLM(**SMALL, max_model_len=40) as llm:
        (output,) = llm.generate("a", SamplingParams(ignore_eos=True, max_tokens=64))
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 40
        with pytest.raises(RequestError, match="maximum context length is 40 tokens"):
            llm.generate([list(range(50))])
        assert llm.get_tokenizer().model_max_length == 40


def test_a_seed_of_the_model_makes_a_program_repeatable() -> None:
    params = SamplingParams(temperature=2, max_tokens=12, ignore_eos=True)
    found = []
    for seed in (5, 5, 6):
        with LLM(**SMALL, seed=seed) as llm:
            outputs = [*llm.generate(["a", "a", "b"], params), *llm.chat([{"role": "user", "content": "a"}], params)]
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1], "each prompt has its own seed"


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"choice": ["apple", "pear"]}, lambda text: text in ("apple", "pear")),
    ({"regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= {"a", "b"}),
    ({"json": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}}, json.loads),
    ({"json": '{"enum": ["x"]}'}, lambda text: json.loads(text) == "x"),
    ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ({"grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
]


@pytest.mark.parametrize(
    ("form", "holds"), FORMS, ids=lambda value: next(iter(value), "") if isinstance(value, dict) else ""
)
def test_structured_outputs_hold_the_reply_to_a_form(llm: LLM, form: dict[str, Any], holds: Any) -> None:
    for given in (
        SamplingParams(seed=1, structured_outputs=StructuredOutputsParams(**form)),
        SamplingParams(seed=1, guided_decoding=GuidedDecodingParams(**form, backend="xgrammar")),
        SamplingParams(seed=1, structured_outputs=form),
    ):
        texts = [
            llm.generate("a", given)[0].outputs[0],
            llm.chat([{"role": "user", "content": "a"}], given)[0].outputs[0],
        ]
        for each in texts:
            assert each.finish_reason == "length" or holds(each.text)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"structured_outputs": StructuredOutputsParams()}, "must contain exactly one of json"),
        ({"structured_outputs": StructuredOutputsParams(regex="a", choice=["a"])}, "must contain exactly one"),
        ({"structured_outputs": StructuredOutputsParams(regex="a", whitespace_pattern=" ")}, "whitespace_pattern"),
        ({"structured_outputs": {"regexp": "a"}}, "regexp"),
        ({"structured_outputs": {"regex": "a"}, "guided_decoding": {"regex": "a"}}, "excludes structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "excludes"),
        ({"logits_processors": [len]}, "logits_processors=.*use logit_bias"),
        ({"extra_args": {"a": 1}}, "extra_args="),
        ({"detokenize": False}, "detokenize=False: replies always contain text"),
        ({"best_of": 3}, "best_of"),
        ({"n": 0}, "n"),
    ],
    ids=str,
)
def test_unsupported_parameters_are_rejected_by_name(llm: LLM, params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate("a", SamplingParams(**params))


def test_vllm_parameters_without_effect_are_accepted(llm: LLM) -> None:
    params = SamplingParams(
        n=2, best_of=2, detokenize=True, logits_processors=[], extra_args={}, spaces_between_special_tokens=True
    )
    params.max_tokens = 2
    copied = params.clone()
    copied.n = copied.best_of = 1
    assert len(llm.generate("a", params)[0].outputs) == 2
    assert len(llm.generate("a", copied)[0].outputs) == 1
    assert llm.get_default_sampling_params() == SamplingParams()


def test_log_probabilities_of_the_prompt_and_their_sum(llm: LLM) -> None:
    (output,) = llm.generate(
        "What is 2 + 2?", SamplingParams(max_tokens=4, ignore_eos=True, logprobs=0, prompt_logprobs=1)
    )
    assert output.prompt_logprobs is not None
    first, *others = output.prompt_logprobs
    assert first is None
    assert len(others) == len(output.prompt_token_ids) - 1
    assert all(token in scores for token, scores in zip(output.prompt_token_ids[1:], others, strict=True))
    reply = output.outputs[0]
    assert reply.logprobs is not None
    scores = [each[token].logprob for token, each in zip(reply.token_ids, reply.logprobs, strict=True)]
    assert reply.cumulative_logprob == sum(scores) < 0
    assert reply.finished()


def test_a_final_message_is_continued(llm: LLM) -> None:
    talk = [{"role": "user", "content": "What is 12 + 7?"}, {"role": "assistant", "content": "12 + 7 ="}]
    params = SamplingParams(temperature=0, max_tokens=4)
    (output,) = llm.chat(talk, params, add_generation_prompt=False, continue_final_message=True)
    assert llm.chat(talk, params, continue_final_message=True)[0].outputs == output.outputs
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(output.prompt_token_ids).endswith("12 + 7 =")
    with pytest.raises(RequestError, match="cannot be combined with add_generation_prompt"):
        llm.chat(talk, params, add_generation_prompt=True, continue_final_message=True)
    (open_ended,) = llm.chat(talk[:1], params, add_generation_prompt=False)
    assert list(open_ended.prompt_token_ids) == tokenizer.apply_chat_template(talk[:1])


def test_a_chat_call_may_have_its_own_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "abc"}], GREEDY, chat_template="{{ messages[0].content }}!")
    assert llm.get_tokenizer().decode(output.prompt_token_ids, skip_special_tokens=True) == "abc!"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"lora_request": "an adapter"}, "lora_request=.*adapters are not supported"),
        ({"priority": [1]}, "priority=.*prompts start in the given order"),
        ({"prompt_token_ids": [[1]]}, "prompt_token_ids=.*give token ids as prompts"),
    ],
    ids=str,
)
def test_arguments_of_calls_are_refused_by_name(llm: LLM, argument: dict[str, Any], message: str) -> None:
    for call in (lambda **more: llm.generate("a", GREEDY, **more), lambda **more: llm.chat([], GREEDY, **more)):
        with pytest.raises(RequestError, match=message):
            call(**argument)
        with pytest.raises(TypeError, match="unknown argument: loras"):
            call(loras=1)
    with pytest.raises(RequestError, match="give token ids as prompts"):
        llm.generate(sampling_params=GREEDY, prompt_token_ids=[[1]])
    assert llm.generate("a", GREEDY, lora_request=None)


def test_progress_may_be_shown_by_the_callers_class(llm: LLM) -> None:
    shown = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            shown.append(options["total"])

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            shown.append("end")

        def update(self, count: int) -> None:
            shown.append(count)

    llm.generate(["a", "b"], GREEDY, use_tqdm=Bar)
    assert shown == [2, 1, 1, "end"]


def test_both_classes_accept_the_same_arguments() -> None:
    assert inspect.signature(LLM.__init__) == inspect.signature(AsyncLLM.__init__)
