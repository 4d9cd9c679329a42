"""Parts of the wire format that need no server: request bodies in, frames out."""

import json
import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.limits import Limits
from ballast.engine.request import FinishReason, Output, SamplingFields, SamplingParams
from ballast.errors import CapacityError, EngineDeadError, RequestError
from ballast.families.registry import FAMILIES
from ballast.generation.choice import Choice, Piece
from ballast.generation.request_builder import RequestBuilder
from ballast.library.params import SamplingParams as LibraryParams
from ballast.text.loading import load_text
from ballast.text.marks import Start
from ballast.text.reply_parts import Content
from ballast.wire.errors import error_reply
from ballast.wire.ignored_fields import IgnoredFields
from ballast.wire.json_text import to_json
from ballast.wire.openai.reply import ChatFormat, Reply, Shape, TextFormat
from ballast.wire.openai.request import ChatCompletionRequest, CompletionRequest, parse_body, to_sampling
from ballast.wire.responses.request import ResponsesRequest
from ballast.wire.usage import Timings, Usage
from devkit.models.vocabulary import byte_metadata

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ extra }}"
USAGE = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4)
TIMINGS = Timings(USAGE, prompt_s=0.5, predicted_s=2.0)
COUNTS = SimpleNamespace(usage=USAGE, timings=TIMINGS)
LIMITS = Limits(max_new_tokens=50, max_model_tokens=100, max_batch_size=4, max_queue=8)


@pytest.fixture(scope="module")
def text():
    return load_text(None, byte_metadata() | {"tokenizer.chat_template": TEMPLATE}, "bytes.gguf")


def body(kind, **fields):
    return parse_body(kind, json.dumps(fields).encode(), LIMITS.max_model_tokens, IgnoredFields())


def chat(**fields):
    return body(ChatCompletionRequest, **({"messages": [{"role": "user", "content": "hi"}]} | fields))


def test_omitted_fields_have_openais_defaults():
    params = to_sampling(chat(), max_tokens=9, eos_ids=frozenset({1}))
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (1.0, 1.0, 0, 0.0, None)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.stop_token_ids) == (9, 0, {1})


def test_every_sampling_parameter_is_a_field_of_each_openai_body_and_the_library():
    names = {each.name for each in fields(SamplingParams)} - {"max_tokens", "logprobs", "constraint"}
    for kind in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):
        assert names <= kind.model_fields.keys()
    assert names <= {each.name for each in fields(LibraryParams)}


def test_every_declared_sampling_field_is_one_of_the_engine_and_starts_at_its_default():
    declared = {each.name: getattr(SamplingParams(max_tokens=1), each.name) for each in fields(SamplingFields)}
    omitted = to_sampling(chat(), max_tokens=1, eos_ids=frozenset())
    assert declared == {name: getattr(omitted, name) for name in declared}


def test_every_sampling_field_reaches_the_engine():
    params = to_sampling(
        chat(
            temperature=0,
            top_p=0.5,
            top_k=7,
            min_p=0.1,
            seed=-3,
            presence_penalty=1,
            frequency_penalty=-1,
            repetition_penalty=1.2,
            min_tokens=2,
            stop_token_ids=[5, 6],
            logit_bias={"4": -100, "7": 2},
        ),
        max_tokens=9,
        eos_ids=frozenset({1}),
    )
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0, 0.5, 7, 0.1, -3)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.2)
    assert (params.min_tokens, params.stop_token_ids) == (2, {1, 5, 6})
    assert params.logit_bias == {4: -100, 7: 2}


def test_ignore_eos_leaves_only_the_clients_own_stop_tokens():
    assert to_sampling(chat(ignore_eos=True), max_tokens=9, eos_ids=frozenset({1})).stop_token_ids == frozenset()


def test_top_k_of_minus_one_keeps_every_token():
    assert to_sampling(chat(top_k=-1), max_tokens=9, eos_ids=frozenset()).top_k == 0


@pytest.mark.parametrize(("stop", "expected"), [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), ([], [])])
def test_stop_is_one_text_several_or_none(stop, expected):
    assert chat(stop=stop).stop == expected


def test_an_integer_may_be_written_with_a_decimal_point():
    written = {"max_tokens": 3.0, "n": 2.0, "seed": -4.0, "top_k": 5.0, "priority": 1e3, "stop_token_ids": [6.0]}
    read = chat(**written)
    found = {name: getattr(read, name) for name in written}
    assert repr(found) == "{'max_tokens': 3, 'n': 2, 'seed': -4, 'top_k': 5, 'priority': 1000, 'stop_token_ids': [6]}"
    assert repr(body(CompletionRequest, prompt=[[1.0, 2], [3]]).prompt) == "[[1, 2], [3]]"
    assert repr(body(CompletionRequest, prompt=[1.0, 2.0]).prompt) == "[[1, 2]]"
    for wrong in ({"max_tokens": 3.5}, {"prompt": [1.5]}, {"prompt": [[1.0], [True]]}, {"seed": 1e300}):
        with pytest.raises(RequestError):
            body(CompletionRequest, **({"prompt": "x"} | wrong))


def test_a_byte_order_mark_before_the_body_is_skipped():
    data = '\ufeff{"prompt": "\ufeffa"}'.encode()
    assert parse_body(CompletionRequest, data, 100, IgnoredFields()).prompt == ["\ufeffa"]


def refusal_of(data):
    try:
        parse_body(CompletionRequest, data, LIMITS.max_model_tokens, IgnoredFields())
    except RequestError as refusal:
        return refusal
    return None


BESIDE = ("stream_options", "prompt_logprobs", "max_tokens", "best_of")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
def test_any_value_in_any_field_is_accepted_or_rejected_by_name(value):
    for name in (*CompletionRequest.model_fields, *CompletionRequest.other_fields):
        refusal = refusal_of(to_json({"prompt": "x", "stream": True, name: value}))
        if refusal is not None:
            assert refusal.status == 400
            assert refusal.param is not None
            # For two mutually exclusive fields, the error names one of them.
            assert refusal.param.split(".")[0] in (name, *BESIDE)


def test_max_tokens_is_lowered_to_the_servers_cap(text):
    request_builder = RequestBuilder(text, LIMITS)
    assert request_builder.completion(body(CompletionRequest, prompt="x", max_tokens=49)).sampling.max_tokens == 49
    assert request_builder.completion(body(CompletionRequest, prompt="x", max_tokens=9999)).sampling.max_tokens == 50
    assert request_builder.chat(chat(max_completion_tokens=9999)).sampling.max_tokens == 50


@pytest.mark.parametrize(
    ("num_prompt", "requested", "granted", "output"),
    [
        (10, 49, 49, None),
        (10, 50, 50, None),
        (10, 51, 50, 50),
        (60, 40, 40, None),
        (60, 50, 40, 40),
        (60, 9999, 40, 40),
        (99, 9999, 1, 1),
        (60, 41, None, None),
        (100, 9999, None, None),
        (100, 1, None, None),
    ],
)
def test_max_tokens_is_lowered_to_the_limit_or_must_fit(text, num_prompt, requested, granted, output):
    asking = body(CompletionRequest, prompt=[5] * num_prompt, max_tokens=requested)
    if granted is None:
        with pytest.raises(RequestError, match="maximum context length is 100 tokens"):
            RequestBuilder(text, LIMITS).completion(asking)
        return
    job = RequestBuilder(text, LIMITS).completion(asking)
    assert (job.sampling.max_tokens, job.lowered_max_tokens) == (granted, output)


def test_max_tokens_defaults_to_the_largest_allowed_that_fits(text):
    request_builder = RequestBuilder(text, LIMITS)
    assert request_builder.completion(body(CompletionRequest, prompt="x" * 9)).sampling.max_tokens == 50
    assert request_builder.completion(body(CompletionRequest, prompt="x" * 79)).sampling.max_tokens == 20
    assert request_builder.completion(body(CompletionRequest, prompt="x" * 98)).sampling.max_tokens == 1
    with pytest.raises(RequestError, match="maximum context length is 100 tokens"):
        request_builder.completion(body(CompletionRequest, prompt="x" * 99))


def test_bos_is_added_once_and_never_before_token_ids(text):
    request_builder = RequestBuilder(text, LIMITS)
    h, i = 2 + ord("h"), 2 + ord("i")
    assert request_builder.chat(chat()).prompts[0].ids == (0, h, i)
    assert request_builder.completion(body(CompletionRequest, prompt="hi")).prompts[0].ids == (0, h, i)
    assert request_builder.completion(body(CompletionRequest, prompt=[h, i])).prompts[0].ids == (h, i)


def letters(word):
    return tuple(2 + ord(letter) for letter in word)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, (0, *letters("abcdef"))),
        ({"add_special_tokens": False}, letters("abcdef")),
        ({"truncate_prompt_tokens": 2}, letters("ef")),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, (0, *letters("ab"))),
        ({"truncate_prompt_tokens": 100}, (0, *letters("abcdef"))),
        ({"prompt": [5, 6, 7], "truncate_prompt_tokens": 2}, (6, 7)),
        (
            {"prompt": "x" * 99 + "y", "truncate_prompt_tokens": -1, "max_tokens": 98},
            letters("x" * 49 + "y"),
        ),
        ({"prompt": "x" * 5000, "truncate_prompt_tokens": 1}, letters("x")),
    ],
)
def test_which_of_a_texts_tokens_are_its_prompt(text, fields, kept):
    job = RequestBuilder(text, LIMITS).completion(body(CompletionRequest, **{"prompt": "abcdef"} | fields))
    assert job.prompts[0].ids == kept
    assert job.prompts[0].num_added == (1 if kept[0] == 0 else 0)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"add_special_tokens": True}, (0, 0, *letters("hi"))),
        ({"add_special_tokens": False}, (0, *letters("hi"))),
        ({"truncate_prompt_tokens": 1}, letters("i")),
    ],
)
def test_which_of_a_chats_tokens_are_its_prompt(text, fields, kept):
    assert RequestBuilder(text, LIMITS).chat(chat(**fields)).prompts[0].ids == kept


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repeat_last_n"),
        ({"include_reasoning": False, "separate_reasoning": False}, "include_reasoning"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"reasoning": {"effort": "lots"}}, "reasoning.effort"),
    ],
)
def test_invalid_fields_are_rejected_by_name(fields, param):
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert refused.value.param == param


def test_the_repetition_penalty_applies_to_all_tokens_or_none():
    def penalty(**fields):
        return to_sampling(chat(**fields), max_tokens=9, eos_ids=frozenset()).repetition_penalty

    assert penalty(repeat_penalty=1.3) == penalty(repeat_penalty=1.3, repeat_last_n=-1) == 1.3
    assert penalty(repeat_penalty=1.3, repeat_last_n=0) == penalty(repeat_last_n=64) == 1.0


@pytest.mark.parametrize(("fields", "shown"), [({}, "ab"), ({"skip_special_tokens": False}, "a<eos>b")])
def test_control_tokens_are_shown_on_demand(text, fields, shown):
    request = body(CompletionRequest, prompt="x", **fields)
    job = RequestBuilder(text, LIMITS).completion(request)
    choice = Choice(0, job, job.prompts[0], text.tokenizer)
    control = text.tokenizer.eos_id
    assert text.tokenizer.is_control(control)
    piece = choice.take(Output((2 + ord("a"), control, 2 + ord("b")), FinishReason.LENGTH, 0), ())
    assert piece.text == shown.replace("<eos>", text.tokenizer.token_bytes(control).decode())


def test_template_arguments_reach_the_template(text):
    job = RequestBuilder(text, LIMITS).chat(chat(chat_template_kwargs={"extra": "!"}))
    assert job.prompts[0].ids[-1] == 2 + ord("!")


REVERSED = "{% for m in messages %}{{ m.content | reverse }}{% endfor %}{{ eos_token }}"


def test_a_requests_template_is_used_only_if_allowed(text):
    trusting = RequestBuilder(text, LIMITS, trust_templates=True)
    assert trusting.chat(chat(chat_template=REVERSED)).prompts[0].ids == (*letters("ih"), 1)
    assert trusting.chat_prompt(chat(chat_template=REVERSED)).ids == (*letters("ih"), 1)
    with pytest.raises(RequestError, match="chat_template: ") as wrong:
        trusting.chat(chat(chat_template="{% for %}"))
    assert wrong.value.param == "chat_template"
    wary = RequestBuilder(text, LIMITS)
    with pytest.raises(RequestError, match="--trust_request_chat_template"):
        wary.chat(chat(chat_template=REVERSED))
    assert wary.chat(chat(chat_template=TEMPLATE)).prompts[0].ids == (0, *letters("hi")), "the model's own"


def test_a_requests_own_template_has_the_tags_of_the_models_family():
    marks = tuple(FAMILIES["gpt_oss"].reply.spellings.values())
    on_channels = load_text(None, byte_metadata(user_defined=marks), "bytes.gguf")
    builder = RequestBuilder(on_channels, LIMITS, force_think=True, trust_templates=True)
    ids = builder.chat(chat(chat_template=REVERSED)).prompts[0].ids
    assert on_channels.tokenizer.decode(ids, skip_control=False).endswith("<|channel|>analysis<|message|>")


DEEPSEEK = byte_metadata(user_defined=("<think>", "</think>", *FAMILIES["deepseek"].vocabulary))


@pytest.fixture(scope="module")
def v31():
    return load_text(None, DEEPSEEK, "bytes.gguf", "deepseek-v3.1")


def prompt_of(text, **fields):
    job = RequestBuilder(text, LIMITS).chat(chat(**fields))
    return text.tokenizer.decode(job.prompts[0].ids, skip_control=False)


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({}, "</think>"),
        ({"thinking": {"type": "enabled"}}, "<think>"),
        ({"thinking": {"type": "disabled"}}, "</think>"),
        ({"thinking": True}, "<think>"),
        ({"enable_thinking": True}, "<think>"),
        ({"reasoning_effort": "high"}, "<think>"),
        ({"reasoning_effort": "none"}, "</think>"),
        ({"reasoning": {"effort": "low"}}, "<think>"),
        ({"reasoning": {"effort": "none"}}, "</think>"),
        ({"reasoning": {"enabled": True}}, "<think>"),
        ({"reasoning": {"enabled": False}}, "</think>"),
        ({"chat_template_kwargs": {"thinking": True}}, "<think>"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "<think>"),
        ({"chat_template_kwargs": {"thinking": True}, "thinking": {"type": "disabled"}}, "</think>"),
    ],
)
def test_every_option_for_reasoning_reaches_the_template(v31, fields, tail):
    assert prompt_of(v31, **fields).endswith(f"<｜Assistant｜>{tail}")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"thinking": {"type": "enabled"}}, ("thinking",)),
        ({"thinking": {"type": "disabled"}}, ()),
        ({"reasoning_effort": "medium"}, ("reasoning_effort",)),
        ({"reasoning": {"effort": "low"}}, ("reasoning.effort",)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ()),
        ({}, ()),
    ],
)
def test_a_model_without_reasoning_ignores_a_request_for_it(v31, fields, named):
    v3 = load_text(None, DEEPSEEK, "bytes.gguf", "deepseek-v3")
    assert prompt_of(v3, **fields).endswith("<｜Assistant｜>")
    assert RequestBuilder(v3, LIMITS).chat(chat(**fields)).ineffective == named
    assert RequestBuilder(v31, LIMITS).chat(chat(**fields)).ineffective == ()


def test_unused_template_variables_are_reported(text, v31):
    variables = {"enable_thinking": True, "extra": "a", "other": 1}
    job = RequestBuilder(text, LIMITS).chat(chat(chat_template_kwargs=variables))
    assert job.ineffective == ("chat_template_kwargs.enable_thinking", "chat_template_kwargs.other")
    job = RequestBuilder(v31, LIMITS).chat(chat(chat_template_kwargs=variables))
    assert job.ineffective == ("chat_template_kwargs.extra", "chat_template_kwargs.other")


CLOSED = "<think>\n\n</think>\n\n"
ALWAYS = "a<think>"


@pytest.mark.parametrize(
    ("template", "force_think", "fields", "tail"),
    [
        (ALWAYS, False, {}, "a<think>"),
        (ALWAYS, False, {"thinking": {"type": "enabled"}}, "a<think>"),
        (ALWAYS, False, {"thinking": {"type": "adaptive"}}, "a<think>"),
        (ALWAYS, False, {"thinking": {"type": "disabled"}}, f"a{CLOSED}"),
        (ALWAYS, False, {"enable_thinking": False}, f"a{CLOSED}"),
        (ALWAYS, False, {"reasoning_effort": "none"}, f"a{CLOSED}"),
        (ALWAYS, False, {"chat_template_kwargs": {"enable_thinking": False}}, f"a{CLOSED}"),
        ("a<think>{{ '\\n' }}", False, {"thinking": False}, f"a{CLOSED}"),
        ("a", False, {"thinking": False}, "a"),
        ("a", True, {}, "a<think>\n"),
        ("a", True, {"thinking": {"type": "adaptive"}}, "a<think>\n"),
        ("a", True, {"thinking": False}, f"a{CLOSED}"),
        (ALWAYS, True, {"thinking": False}, f"a{CLOSED}"),
        ("deepseek-r1", False, {"thinking": False}, f"<｜Assistant｜>{CLOSED}"),
        ("deepseek-r1", True, {"thinking": False}, f"<｜Assistant｜>{CLOSED}"),
        ("deepseek-v3", False, {"thinking": False}, "<｜Assistant｜>"),
        ("deepseek-v3.1", True, {"thinking": False}, "<｜Assistant｜></think>"),
    ],
)
def test_disabled_reasoning_is_an_empty_thought_for_a_model_that_always_thinks(template, force_think, fields, tail):
    named = template if template.startswith("deepseek") else None
    metadata = DEEPSEEK if named else byte_metadata() | {"tokenizer.chat_template": template}
    text = load_text(None, metadata, "bytes.gguf", named)
    job = RequestBuilder(text, LIMITS, force_think).chat(chat(**fields))
    prompt = text.tokenizer.decode(job.prompts[0].ids, skip_control=False)
    assert prompt.endswith(tail)
    if not named:
        assert prompt.removeprefix("<s>") == tail


PICKY = (
    "{% if reasoning_effort == 'low' %}{{ raise_exception('reasoning_effort is low; expected high') }}{% endif %}"
    "{% if enable_thinking %}{{ raise_exception('enable_thinking is on') }}{% endif %}"
    "{% if clear_thinking %}{{ raise_exception('clear_thinking is on') }}{% endif %}"
)
LOW = {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (LOW, "reasoning_effort"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"chat_template_kwargs": LOW}, "chat_template_kwargs.reasoning_effort"),
        ({"chat_template_kwargs": LOW, "reasoning_effort": "high"}, "chat_template_kwargs.reasoning_effort"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"enable_thinking": True}, "enable_thinking"),
        ({"reasoning": {"enabled": True}}, "reasoning.enabled"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "thinking": True}, "thinking"),
        ({"thinking": {"type": "disabled", "clear_thinking": True}}, "thinking.clear_thinking"),
        # A switch under another name than the template's.
        ({"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"),
        (
            {"chat_template_kwargs": {"thinking": True}, "reasoning": {"max_tokens": 5}},
            "chat_template_kwargs.thinking",
        ),
    ],
)
def test_a_value_that_the_template_refuses_is_named_by_its_field(fields, param):
    text = load_text(None, byte_metadata() | {"tokenizer.chat_template": PICKY}, "/models/m.gguf")
    with pytest.raises(RequestError, match=rf"^{re.escape(param)}: the model's chat template cannot use ") as refused:
        RequestBuilder(text, LIMITS).chat(chat(**fields))
    assert refused.value.param == param
    assert "/models" not in refused.value.message


CONTINUED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [CONTINUED[0], {**CONTINUED[1], "prefix": True}]},
        {"messages": [CONTINUED[0], {**CONTINUED[1], "partial": True}]},
        {"messages": CONTINUED, "continue_final_message": True},
        {"messages": CONTINUED, "continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_the_last_message_can_be_continued(v31, fields):
    assert prompt_of(v31, **fields).endswith("<｜Assistant｜></think><think")


def test_a_prompt_without_a_turn_for_the_assistant(v31):
    assert prompt_of(v31, add_generation_prompt=False).endswith("hi")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "messages.0.role"),
        ({"messages": CONTINUED, "continue_final_message": True, "add_generation_prompt": True}, "continue_final"),
        ({"messages": [{**CONTINUED[1], "prefix": True}, CONTINUED[0]]}, "messages.0.prefix"),
        ({"messages": [CONTINUED[0], {**CONTINUED[1], "prefix": "true"}]}, "messages.1.prefix"),
        ({"messages": [CONTINUED[0], {**CONTINUED[1], "prefix": 0}]}, "messages.1.prefix"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": {"strftime_now": "x"}}, "chat_template_kwargs.strftime_now"),
        ({"chat_template_kwargs": {"eos_token": ""}}, "chat_template_kwargs.eos_token"),
        ({"thinking": {"type": "perhaps"}}, "thinking"),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
    ],
)
def test_an_impossible_message_to_continue_is_rejected_by_name(v31, fields, param):
    with pytest.raises(RequestError) as refused:
        prompt_of(v31, **fields)
    assert refused.value.param.startswith(param)


@pytest.mark.parametrize("fields", [{"continue_final_message": True}, {}])
def test_a_continued_message_is_not_held_to_a_response_format(v31, fields):
    final = CONTINUED[1] if fields else {**CONTINUED[1], "prefix": True}
    body = {"messages": [CONTINUED[0], final], **fields}
    with pytest.raises(RequestError, match="response_format: cannot be combined with continuing") as refused:
        RequestBuilder(v31, LIMITS).chat(chat(**body, response_format={"type": "json_object"}))
    assert refused.value.param == "response_format"
    assert RequestBuilder(v31, LIMITS).chat(chat(**body, response_format={"type": "text"})).sampling.constraint is None


def test_a_clients_text_is_no_control_token(text):
    messages = [{"role": "user", "content": "<think>"}]
    job = RequestBuilder(text, LIMITS).chat(chat(messages=messages))
    assert text.tokenizer.id_of("<think>") not in job.prompts[0].ids
    assert "<think>" in text.tokenizer.decode(job.prompts[0].ids)


def test_force_think_opens_the_prompt_and_the_reply(text):
    job = RequestBuilder(text, LIMITS, force_think=True).chat(chat())
    assert text.tokenizer.decode(job.prompts[0].ids, skip_control=False).endswith("hi<think>\n")
    assert (job.opening, job.layout.start) == ("", Start.REASONING)
    inline = RequestBuilder(text, LIMITS, force_think=True, split_reasoning=False).chat(chat())
    assert (inline.opening, inline.layout.marks) == ("<think>\n", {})
    v2 = load_text(None, byte_metadata(user_defined=()), "v2.gguf", "deepseek-v2")
    forced = RequestBuilder(v2, LIMITS, force_think=True)
    assert forced.chat(chat()).opening == "<think>\n"
    assert forced.chat(chat(thinking=False)).opening == ""


def test_a_model_without_a_template_refuses_chats_but_continues_texts():
    request_builder = RequestBuilder(load_text(None, byte_metadata(), "bytes.gguf"), LIMITS)
    with pytest.raises(RequestError, match="template"):
        request_builder.chat(chat())
    assert request_builder.completion(body(CompletionRequest, prompt="hi")).prompts[0].ids


@given(st.text())
def test_json_breaks_in_no_clients_line_splitter_and_keeps_the_text(value):
    data = to_json({"text": value})
    assert json.loads(data) == {"text": value}
    assert len(data.decode().splitlines()) == 1


@given(st.text(), st.text())
def test_a_frame_is_one_line_for_any_text_and_model_name(piece, model):
    for format_ in (ChatFormat(), TextFormat()):
        reply = Reply("id", 1, model, format_, Shape(), bytes)
        frame = reply.piece(Piece(0, (Content(piece or "x"),)), COUNTS).decode()
        assert frame.startswith("data: ")
        assert frame.endswith("\n\n")
        assert len(frame.splitlines()) == 2
        chunk = json.loads(frame.removeprefix("data: "))
        (choice,) = chunk["choices"]
        assert (choice["delta"]["content"] if "delta" in choice else choice["text"]) == (piece or "x")
        assert chunk["model"] == model


def test_timings_are_speeds_of_computed_tokens():
    assert TIMINGS.to_wire() == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 83.333,
        "prompt_per_second": 12.0,
        "predicted_n": 5,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", [(0, 106, 107)]),
        (["h", "i"], [(0, 106), (0, 107)]),
        ([5, 6], [(5, 6)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        (["h", [7]], [(0, 106), (7,)]),
    ],
)
def test_a_prompt_is_a_text_token_ids_or_a_list_of_these(text, prompt, expected):
    job = RequestBuilder(text, LIMITS).completion(body(CompletionRequest, prompt=prompt))
    assert [each.ids for each in job.prompts] == expected


def test_the_first_choice_has_the_requests_seed_and_the_others_derived_ones(text):
    def seeds(seed):
        job = RequestBuilder(text, LIMITS).chat(chat(n=4, seed=seed))
        return [request.sampling.seed for request in job.requests("id")]

    assert seeds(7)[0] == 7
    assert seeds(7) == seeds(7)
    assert len({*seeds(7), *seeds(8)}) == 8
    assert seeds(None) == [None] * 4


def test_without_sampling_the_likeliest_token_is_taken():
    greedy = to_sampling(chat(do_sample=False, temperature=0.7), max_tokens=9, eos_ids=frozenset())
    assert greedy.temperature == 0
    assert to_sampling(chat(do_sample=True, temperature=0.7), max_tokens=9, eos_ids=frozenset()).temperature == 0.7


KEEPS = """{% for m in messages %}{{ m.content }}
{%- if clear_thinking is defined and not clear_thinking and m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("thinking", "prompt"),
    [
        ({"type": "enabled", "clear_thinking": False}, "a[so]b"),
        ({"type": "enabled", "clear_thinking": True}, "ab"),
        ({"type": "enabled"}, "ab"),
    ],
)
def test_reasoning_of_earlier_turns_is_kept_where_the_template_can(thinking, prompt):
    text = load_text(None, byte_metadata() | {"tokenizer.chat_template": KEEPS}, "bytes.gguf")
    messages = [{"role": "assistant", "content": "a", "reasoning_content": "so"}, {"role": "user", "content": "b"}]
    job = RequestBuilder(text, LIMITS).chat(chat(messages=messages, thinking=thinking))
    assert text.tokenizer.decode(job.prompts[0].ids) == prompt
    assert job.ineffective == ("thinking",)


def test_an_unsupported_option_for_earlier_reasoning_is_reported(v31):
    thinking = {"type": "enabled", "clear_thinking": False}
    assert RequestBuilder(v31, LIMITS).chat(chat(thinking=thinking)).ineffective == ("thinking.clear_thinking",)


def test_only_an_echo_may_generate_no_token(text):
    request_builder = RequestBuilder(text, LIMITS)
    assert request_builder.completion(body(CompletionRequest, prompt="hi", echo=True, max_tokens=0)).discard_tokens
    with pytest.raises(RequestError, match="max_tokens"):
        body(CompletionRequest, prompt="hi", max_tokens=0)
    with pytest.raises(RequestError, match="max_tokens"):
        chat(max_tokens=0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 13}, "n"),
        ({"n": 7, "prompt": ["a", "b"]}, "n"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"priority": 2**31}, "priority"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"prompt": [[1], [True]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
    ],
)
def test_unsupported_values_are_refused_by_name(text, fields, param):
    with pytest.raises(RequestError) as refusal:
        RequestBuilder(text, LIMITS).completion(body(CompletionRequest, **({"prompt": "x"} | fields)))
    assert refusal.value.param == param


def test_usage_adds_up():
    assert Usage(5, 7, 3).to_wire() == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_cache_hit_tokens": 3,
        "prompt_cache_miss_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (RequestError("no", param="x", code="c"), 400, "c", None),
        (CapacityError("full", retry_after_s=0.2501), 429, "queue_full", ("1", "251")),
        (CapacityError("loading", retry_after_s=5, status=503), 503, "not_ready", ("5", "5000")),
        (EngineDeadError("secret"), 500, "engine_dead", None),
        (ZeroDivisionError("secret"), 500, None, None),
    ],
)
def test_every_error_has_a_status_and_discloses_no_internals(error, status, code, retry_after):
    reply = error_reply(error)
    assert (reply.status, reply.body["error"]["code"]) == (status, code)
    reported = (reply.headers.get("Retry-After"), reply.headers.get("Retry-After-Ms"))
    assert reported == (retry_after or (None, None))
    assert "secret" not in reply.body["error"]["message"]


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (500, "server_error")])
def test_a_server_error_is_not_reported_as_an_invalid_request(status, kind):
    assert error_reply(RequestError("broke", status=status)).body["error"]["type"] == kind


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "prompt: must not be empty"),
        (
            {"prompt": "x", "logit_bias": {"5" * 50: 1}},
            f"logit_bias: keys must be token ids, and {'5' * 50} is not one; /tokenize returns the ids of a text",
        ),
        ({"prompt": "x", "logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias: must have at most 1024 entries"),
        ({"prompt": "x", "stop": ["a"] * 17}, "stop: must have at most 16 entries"),
        ({"prompt": "x", "stop_token_ids": [1] * 257}, "stop_token_ids: must have at most 256 entries"),
        ({"prompt": "x", "stop_token_ids": 5}, "stop_token_ids: must be a list"),
        ({"prompt": "x", "logit_bias": []}, "logit_bias: must be an object"),
        ({"prompt": "x", "stream_options": []}, "stream_options: must be an object"),
    ],
)
def test_refusals_speak_of_the_field_and_not_of_the_program(fields, message):
    with pytest.raises(RequestError) as refusal:
        parse_body(CompletionRequest, json.dumps(fields).encode(), 10_000, IgnoredFields())
    assert refusal.value.message == message


def test_a_text_is_refused_before_it_is_tokenised_only_when_it_cannot_fit():
    """The longest token has ten letters: 990 letters may fit into a context of 100 tokens, 1000 letters cannot."""
    letters = [b"a" * n for n in range(2, 11)]
    metadata = byte_metadata(merges=[(token[:-1], b"a") for token in letters], user_defined=())
    request_builder = RequestBuilder(load_text(None, metadata, "bytes.gguf"), LIMITS)
    tokenizer = request_builder.text.tokenizer
    assert tokenizer.fewest_tokens("a" * 990) <= len(tokenizer.encode("a" * 990))
    longest = max(len(tokenizer.token_bytes(n)) for n in range(tokenizer.vocab_size))
    with pytest.raises(RequestError, match="at least 100 in the prompt") as refusal:
        request_builder.completion(body(CompletionRequest, prompt="a" * (99 * longest + 1)))
    assert refusal.value.code == "context_length_exceeded"


@given(st.text())
def test_no_text_has_fewer_tokens_than_its_lower_bound(text, value):
    assert text.tokenizer.fewest_tokens(value) <= len(text.tokenizer.encode(value))


def test_too_many_token_ids_are_rejected_by_their_number(text):
    request_builder = RequestBuilder(text, LIMITS)
    with pytest.raises(RequestError, match="at least 101 tokens") as refusal:
        request_builder.completion(body(CompletionRequest, prompt=[10**6] * 100))
    assert refusal.value.code == "context_length_exceeded"
