"""The start of replies, by the family's vocabulary and by the template's output for each switch."""

from typing import Any

import pytest

from ballast.families.registry import FAMILIES, RELEASES, source_of
from ballast.text.loading import load_text
from ballast.text.marks import Start, marks_of, start_of
from devkit.models.vocabulary import byte_metadata

# In the form of the published templates.
K25 = """
{%- for m in messages %}{{ '<|im_user|>user<|im_middle|>' + m.content + '<|im_end|>' }}{% endfor %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}
{{- '<think></think>' if thinking is defined and thinking is false else '<think>' }}
"""
FLASH = """[gMASK]<sop>
{%- for m in messages %}{{ '<|user|>' + m.content }}{% endfor %}
{{- '<|assistant|>' }}{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}
"""
GLM53 = """[gMASK]<sop>
{%- set effort = reasoning_effort if reasoning_effort is defined and reasoning_effort in ['low', 'high'] else 'max' -%}
<|system|>Reasoning Effort: {{ effort | capitalize }}
{%- for m in messages %}{{ '<|user|>' + m.content }}{% endfor %}
{{- '<|assistant|><think>' }}
"""

SMALL4 = source_of(RELEASES["mistral-small-4"][1])
V32, V4 = (source_of(RELEASES[name][1]) for name in ("deepseek-v3.2", "deepseek-v4"))
MINIMAX, HY3, STEP, MIMO = (
    source_of(RELEASES[name][1]) for name in ("minimax-m2", "hy3", "step-3.5-flash", "mimo-v2.5")
)
QWEN35, CODER_NEXT = (source_of(RELEASES[name][1]) for name in ("qwen3.5", "qwen3-coder-next"))
K2_THINKING = "stands for the published template"


def start(family: str, template: str, **options: Any) -> Start:
    form = FAMILIES[family]
    tokens = dict.fromkeys((*form.vocabulary, *form.reply.spellings.values(), *form.ends))
    metadata = byte_metadata("kimi-k2" if family == "kimi" else "glm4", user_defined=tuple(tokens))
    text = load_text(None, metadata | {"tokenizer.chat_template": template}, "m.gguf")
    chosen = text.require_template()
    assert text.tokenizer.reply is form.reply
    assert chosen.has_thinking_switch is (template in (K25, FLASH, V32, V4, HY3, MIMO, QWEN35, K2_THINKING))
    message = "a client's <think> and </think>"
    prompt = chosen.render([{"role": "user", "content": message}], options=options, protect=text.tokenizer.protect)
    thinks = chosen.release is not None and chosen.release.thinks
    marks = marks_of(text.tokenizer, form.reply.thinking)
    return start_of(reversed(text.tokenizer.encode_prompt(prompt)), marks, text.tokenizer.eos_ids, thinks=thinks)


@pytest.mark.parametrize(
    ("family", "template", "options", "expected"),
    [
        ("kimi", K25, {}, Start.REASONING),
        ("kimi", K25, {"thinking": True}, Start.REASONING),
        ("kimi", K25, {"thinking": False}, Start.CONTENT),
        ("glm", FLASH, {}, Start.REASONING),
        ("glm", FLASH, {"enable_thinking": False}, Start.CONTENT),
        ("glm", GLM53, {}, Start.REASONING),
        ("glm", GLM53, {"reasoning_effort": "low"}, Start.REASONING),
        ("glm", GLM53, {"enable_thinking": False}, Start.REASONING),
        ("deepseek32", V32, {}, Start.CONTENT),
        ("deepseek32", V32, {"thinking": True}, Start.REASONING),
        ("deepseek32", V32, {"thinking": False}, Start.CONTENT),
        ("deepseek4", V4, {}, Start.CONTENT),
        ("deepseek4", V4, {"thinking": True}, Start.REASONING),
        ("deepseek4", V4, {"reasoning_effort": "max"}, Start.CONTENT),
        ("minimax", MINIMAX, {}, Start.REASONING),
        ("step", STEP, {}, Start.REASONING),
        ("step", STEP, {"enable_thinking": False}, Start.REASONING),
        ("mimo", MIMO, {}, Start.EITHER),
        ("mimo", MIMO, {"enable_thinking": False}, Start.CONTENT),
        ("qwen3", QWEN35, {}, Start.REASONING),
        ("qwen3", QWEN35, {"enable_thinking": False}, Start.CONTENT),
        ("qwen3", CODER_NEXT, {}, Start.EITHER),
        ("mistral", SMALL4, {}, Start.EITHER),
        ("mistral", SMALL4, {"reasoning_effort": "high"}, Start.EITHER),
        ("hunyuan", HY3, {}, Start.CONTENT),
        ("hunyuan", HY3, {"reasoning_effort": "low"}, Start.REASONING),
        ("hunyuan", HY3, {"enable_thinking": True}, Start.REASONING),
        ("hunyuan", HY3, {"enable_thinking": False}, Start.CONTENT),
    ],
)
def test_the_switch_decides(family: str, template: str, options: dict[str, Any], expected: Start) -> None:
    assert start(family, template, **options) is expected


@pytest.mark.parametrize(("effort", "shown"), [(None, "Max"), ("low", "Low"), ("high", "High"), ("medium", "Max")])
def test_the_effort_reaches_the_template_of_a_file(effort: str | None, shown: str) -> None:
    text = load_text(None, byte_metadata("glm4") | {"tokenizer.chat_template": GLM53}, "m.gguf")
    options = {} if effort is None else {"reasoning_effort": effort}
    prompt = text.require_template().render([{"role": "user", "content": "U"}], options=options)
    assert f"<|system|>Reasoning Effort: {shown}<|user|>U<|assistant|><think>" in prompt


def test_k2_thinking_reasons_first_unless_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ballast.text.loading.release_of", lambda _: RELEASES["kimi-k2-thinking"][1])
    assert start("kimi", K2_THINKING) is Start.EITHER_REASONING
    assert start("kimi", K2_THINKING, thinking=True) is Start.EITHER_REASONING
    assert start("kimi", K2_THINKING, thinking=False) is Start.CONTENT


def test_k2_answers_unless_it_opens_reasoning_itself() -> None:
    assert start("kimi", source_of(RELEASES["kimi-k2"][1])) is Start.EITHER


def test_the_template_distinguishes_mimo_calls_from_qwen_calls() -> None:
    style_of = FAMILIES["mimo"].reply.style_of
    for name, style in (
        *(
            ("qwen3", "json"),
            ("qwen3-next-instruct", "json"),
            ("qwen3-coder", "tagged"),
            ("qwen3-coder-next", "tagged"),
        ),
        *(("qwen3.5", "tagged"), ("qwen3.6", "tagged"), ("qwen3.8", "tagged"), ("mimo-v2.5", "function")),
    ):
        assert style_of(source_of(RELEASES[name][1])) == style
