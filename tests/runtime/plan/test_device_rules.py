"""Placement rules: the modules that each one claims, rejected rules, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast.errors import ConfigError
from ballast.model.modules import module_tree
from ballast.model.spec import ModelSpec
from ballast.model.tensors import expected_tensors
from ballast.moe import match_names as matching
from ballast.moe.device_rules import Placement
from ballast.moe.match_names import PatternError, match_names
from ballast.moe.rule_file import read_placement
from devkit.models.changed_spec import changed
from devkit.models.specs.deepseek import V2_LITE_SPEC, V3_SPEC

SERVE_RULES = r"""
- match: {class: ktransformers.models.modeling_deepseek_v3.DeepseekV3RotaryEmbedding}
  replace:
    class: ktransformers.operators.RoPE.YarnRotaryEmbeddingV3
    kwargs: {generate_device: cuda, prefill_device: cuda}
- match: {name: "^lm_head$", class: torch.nn.Linear}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cuda, prefill_device: cuda, generate_op: VLinearMarlin, prefill_op: KLinearTorch}
- match: {name: "^model\\.layers\\.(?!.*self_attn\\.kv_b_proj).*$", class: torch.nn.Linear}
  replace:
    class: ktransformers.operators.linear.KTransformersLinear
    kwargs: {generate_device: cuda, prefill_device: cuda, generate_op: VLinearMarlin, prefill_op: KLinearTorch}
- match: {name: "^model\\.layers\\..*\\.mlp$", class: ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE}
  replace:
    class: ktransformers.operators.experts.KDeepseekV3MoEV2
    kwargs: {generate_device: cuda, prefill_device: cuda}
- match: {class: ktransformers.models.modeling_deepseek_v3.MoEGate}
  replace:
    class: ktransformers.operators.gate.KMoEGate
    kwargs: {generate_device: "cuda:0", prefill_device: "cuda:0"}
- match: {name: "^model\\.layers\\..*\\.mlp\\.experts$"}
  replace:
    class: ktransformers.operators.experts.KTransformersExpertsV2
    kwargs:
      prefill_device: cuda
      prefill_op: KExpertsTorch
      generate_device: cpu
      generate_op: KExpertsCPU
      out_device: cuda
      backend: AMXInt8
  recursive: False
- match: {name: "^model\\.layers\\..*\\.self_attn$"}
  replace:
    class: ktransformers.operators.attention.flashinfer_attn
    kwargs: {generate_device: cuda, prefill_device: cuda, absorb_for_prefill: False}
- match: {name: "^model$"}
  replace:
    class: ktransformers.operators.models.KDeepseekV2Model
    kwargs: {per_layer_prefill_intput_threshold: 0}
- match: {name: "^model.embed_tokens"}
  replace:
    class: default
    kwargs: {generate_device: cpu, prefill_device: cpu}
- match: {class: ktransformers.models.modeling_deepseek_v3.DeepseekV3RMSNorm}
  replace:
    class: ktransformers.operators.layernorm.RMSNorm
    kwargs: {generate_device: cuda, prefill_device: cuda}
- match: {class: ktransformers.models.modeling_deepseek_v3.DeepseekV3MLP}
  replace:
    class: ktransformers.operators.mlp.kDeepseekV3MLP
    kwargs: {generate_device: cuda, prefill_device: cuda}
"""
"""The shape of the rules that KTransformers serves DeepSeek-V3 with."""


def placed(tmp_path: Path, rules: str, spec: ModelSpec = V3_SPEC) -> Placement:
    file = tmp_path / "rules.yaml"
    file.write_text(rules)
    return read_placement(file, module_tree(spec))


def refused(tmp_path: Path, rules: str, spec: ModelSpec = V3_SPEC) -> str:
    with pytest.raises(ConfigError) as raised:
        placed(tmp_path, rules, spec)
    assert raised.value.exit_code == 2
    message = str(raised.value)
    assert message.startswith(f"optimize_config_path={tmp_path}")
    return message


def rule(match: str, kwargs: str = "{}", more: str = "") -> str:
    return f"- match: {{{match}}}\n  replace: {{class: default, kwargs: {kwargs}}}\n{more}"


def test_the_serving_rules_of_ktransformers_place_a_v3_model(tmp_path: Path) -> None:
    found = placed(tmp_path, SERVE_RULES)
    assert [len(report.modules) for report in found.rules] == [3, 1, 3 * 4 + 3 * 3, 2, 2, 2, 3, 1, 1, 13, 3]
    assert {name for name, device in found.devices.items() if device == "cpu"} == {
        "model.embed_tokens",
        "model.layers.1.mlp.experts",
        "model.layers.2.mlp.experts",
    }
    assert list(found.devices.values()).count("cuda") == 48
    without_device = {module.name for module in module_tree(V3_SPEC)} - found.devices.keys()
    assert without_device == {
        "",
        "model",
        "model.layers",
        *(f"model.layers.{layer}" for layer in range(3)),
        *(f"model.layers.{layer}.self_attn.kv_b_proj" for layer in range(3)),
    }
    assert not any(report.shadowed for report in found.rules)


def test_options_of_ktransformers_without_effect_are_accepted_and_reported_once(tmp_path: Path) -> None:
    [note] = placed(tmp_path, SERVE_RULES).notes
    for name in ("generate_op", "prefill_op", "backend", "absorb_for_prefill", "out_device", "prefill_device"):
        assert note.count(name) == 1
    assert note.endswith("; rules only place routed experts")


@pytest.mark.parametrize(("device", "found"), [("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda")])
def test_a_rule_places_the_experts_of_its_layers(tmp_path: Path, device: str, found: str) -> None:
    text = rule(r"name: 'layers\.1\.mlp\.experts$'", f'{{generate_device: "{device}"}}')
    assert placed(tmp_path, text).devices == {"model.layers.1.mlp.experts": found}


@pytest.mark.parametrize(("device", "is_noted"), [("cuda:1", True), ("cuda:0", False), ("cuda", False), ("cpu", False)])
def test_the_number_of_another_gpu_is_reported_as_not_used(tmp_path: Path, device: str, is_noted: bool) -> None:
    notes = placed(tmp_path, rule(r"name: 'layers\.1\.mlp\.experts$'", f'{{generate_device: "{device}"}}')).notes
    assert any(f"not used: the number in {device}, because one GPU is used" in note for note in notes) is is_noted


def test_kernels_and_classes_of_other_programs_are_accepted(tmp_path: Path) -> None:
    text = "- match: {name: lm_head}\n  replace: {class: my.Own, kwargs: {backend: turbo, generate_device: cpu}}\n"
    assert placed(tmp_path, text).devices == {"lm_head": "cpu"}


def test_the_first_matching_rule_wins_and_the_second_is_reported_as_shadowed(tmp_path: Path) -> None:
    rules = rule("name: mlp.experts$", "{generate_device: cpu}") + rule("name: experts$", "{generate_device: cuda}")
    first, second = placed(tmp_path, rules).rules
    assert first.modules == ("model.layers.1.mlp.experts", "model.layers.2.mlp.experts")
    assert not first.shadowed
    # shared_experts ends in the same word, so the second rule is not empty yet
    assert second.modules == ("model.layers.1.mlp.shared_experts", "model.layers.2.mlp.shared_experts")
    assert second.hidden_by == (1,)
    shadowed = placed(tmp_path, rule("name: experts$") + rule("name: mlp.experts$")).rules[1]
    assert shadowed.shadowed
    assert shadowed.hidden_by == (1,)


def test_a_rule_that_is_not_recursive_closes_off_everything_below(tmp_path: Path) -> None:
    closing = rule("name: 'layers.1.self_attn$'", "{generate_device: cpu}", "  recursive: false\n")
    linear = rule("class: torch.nn.Linear", "{generate_device: cuda}")
    first, second = placed(tmp_path, closing + linear).rules
    assert first.modules == ("model.layers.1.self_attn",)
    assert second.hidden_by == (1,)
    assert not any(name.startswith("model.layers.1.self_attn") for name in second.modules)
    assert "model.layers.0.self_attn.o_proj" in second.modules
    assert "model.layers.1.mlp.shared_experts.up_proj" in second.modules


def test_name_and_class_must_both_match(tmp_path: Path) -> None:
    [report] = placed(tmp_path, rule(r"name: 'layers\.0\.', class: a.b.DeepseekV3RMSNorm")).rules
    assert report.modules == (
        "model.layers.0.self_attn.q_a_layernorm",
        "model.layers.0.self_attn.kv_a_layernorm",
        "model.layers.0.input_layernorm",
        "model.layers.0.post_attention_layernorm",
    )


def test_v2_models_have_the_names_of_v2(tmp_path: Path) -> None:
    rules = rule("class: ktransformers.models.modeling_deepseek.DeepseekV2YarnRotaryEmbedding") + rule(
        "class: modeling_deepseek.DeepseekV2MoE"
    )
    found = placed(tmp_path, rules, V2_LITE_SPEC)
    assert [len(report.modules) for report in found.rules] == [3, 2]
    names = {module.name for module in module_tree(V2_LITE_SPEC)}
    assert "model.layers.0.self_attn.q_proj" in names
    assert "model.layers.0.self_attn.q_a_proj" not in names


def test_only_models_with_yarn_have_yarn_embeddings(tmp_path: Path) -> None:
    rules = rule("class: DeepseekV3YarnRotaryEmbedding")
    assert len(placed(tmp_path, rules).rules[0].modules) == 3
    assert "matches no module" in refused(tmp_path, rules, changed(V3_SPEC, yarn=None))


@pytest.mark.parametrize(
    "spec",
    [
        V3_SPEC,
        V2_LITE_SPEC,
        changed(V3_SPEC, mla_layout="joint", num_shared=0),
    ],
)
def test_every_tensor_belongs_to_a_module_of_the_tree(spec: ModelSpec) -> None:
    names = [module.name for module in module_tree(spec)]
    assert len(names) == len(set(names))
    assert {tensor.module for tensor in expected_tensors(spec).values()} <= set(names)


def test_parents_come_before_their_children() -> None:
    seen: set[str] = set()
    for module in module_tree(V3_SPEC):
        assert not module.name or module.name.rpartition(".")[0] in seen
        seen.add(module.name)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_rule_without_a_match_is_reported_with_similar_modules(tmp_path: Path) -> None:
    message = refused(tmp_path, rule("name: '^model$'") + rule(r"name: '^model\.layers\.\d+\.mlp\.expert$'"))
    assert r"rule 2 (name: ^model\.layers\.\d+\.mlp\.expert$) matches no module of this model" in message
    assert "model.layers.1.mlp.experts" in message


def test_a_rule_for_single_experts_is_rejected_with_the_module_of_all_experts(tmp_path: Path) -> None:
    message = refused(tmp_path, rule(r"name: 'layers\.1\.mlp\.experts\.\d+\.up_proj$'"))
    assert "modules with similar names: " in message


def test_a_class_of_another_family_gets_the_classes_of_this_one(tmp_path: Path) -> None:
    message = refused(tmp_path, rule("class: ktransformers.models.modeling_deepseek_v3.DeepseekV3MoE"), V2_LITE_SPEC)
    assert "its classes are DeepseekV2Attention, " in message
    assert "DeepseekV2MoE" in message


def test_a_rule_for_modules_of_another_class_reports_that_class(tmp_path: Path) -> None:
    message = refused(tmp_path, rule("name: 'mlp.gate$', class: torch.nn.Linear"))
    assert "the name matches 2 modules, of class DeepseekV3TopkRouter, MoEGate, Module" in message


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("", "must be a list of rules"),
        ("[]", "must be a list of rules"),
        ("match: {name: a}", "must be a list of rules"),
        ("- match: {name: [", "is not YAML"),
        ("- just a text", "rule 1: a rule must be a mapping"),
        ("- match: {name: a}", "rule 1 (name: a): a rule needs replace"),
        ("- replace: {class: default}", "rule 1: a rule needs match"),
        ("- match: {}\n  replace: {}", "rule 1: match must have name, class, or both"),
        ("- match: {regex: a}\n  replace: {}", "rule 1: match has regex; allowed are name, class"),
        ("- match: {name: 3}\n  replace: {}", "rule 1 (name: 3): match.name must be a string"),
        (rule("name: '('"), "rule 1 (name: (): name is not a regular expression"),
        (rule("name: 'layers.[4-10]'"), "write a range of numbers as alternatives, (4|5|6)"),
        (rule("name: a") + "  recursive: 1\n", "rule 1 (name: a): recursive must be true or false, not 1"),
        (
            rule("name: a", "{generate_device: xpu}"),
            "replace.kwargs.generate_device must be cpu, cuda or cuda:N, not xpu",
        ),
        (rule("name: a", "{prefill_device: 0}"), "replace.kwargs.prefill_device must be cpu, cuda or cuda:N, not 0"),
        (rule("name: a", "{devise: cpu}"), "replace.kwargs has devise; allowed are generate_device, device, "),
        ("- match: {name: a}\n  replace: {class: [1]}", "replace.class must be a string, not [1]"),
        ("- match: {name: a}\n  replace: {kwargs: [1]}", "replace.kwargs must be a mapping with generate_device, "),
    ],
)
def test_a_malformed_rule_is_reported(tmp_path: Path, rules: str, message: str) -> None:
    assert message in refused(tmp_path, rules)


@pytest.mark.parametrize(
    "pattern",
    [r"^(([a-z.0-9_]+)+)+$Z", r"(.*.*.*.*.*.*.*.*.*.*)*Z", r"(?i)" + r"[\x00-\U0010ffff]" * 1000],
    ids=["nested", "wide", "slow to compile"],
)
def test_an_endless_pattern_is_stopped(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "CPU_S", 0.2)
    names = [module.name for module in module_tree(V3_SPEC)]
    with pytest.raises(PatternError, match=r"cannot be matched with the model's modules: .*0\.2 s") as raised:
        match_names(["lm_head", pattern, "model"], names)
    assert raised.value.index == 1


def test_patterns_that_take_too_long_together_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "CPU_S", 0.0005)
    with pytest.raises(PatternError, match="cannot be matched with the model"):
        match_names([f"a.*b{number}" for number in range(1000)], ["a" * 1000] * 20)


def test_the_stopped_pattern_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "CPU_S", 0.2)
    message = refused(tmp_path, rule("name: lm_head") + rule("class: Linear") + rule("name: '^(([a-z.]+)+)+$Z'"))
    assert "rule 3 (name: ^(([a-z.]+)+)+$Z): name cannot be matched with the model's modules: " in message


@pytest.mark.parametrize("pattern", ["(" * 5000, "(?:a{99999999999999999999})", "a{4294967295}{4294967295}", "[z-a]"])
def test_a_pattern_that_cannot_be_compiled_is_refused(tmp_path: Path, pattern: str) -> None:
    message = refused(tmp_path, rule(f"name: '{pattern}'"))
    assert "name is not a regular expression" in message or "name is too complex for a regular expression" in message
    assert len(message) < 1000


def test_a_rule_of_many_digits_and_a_bomb_of_aliases_are_refused(tmp_path: Path) -> None:
    assert "must be cpu, cuda or cuda:N" in refused(tmp_path, rule("name: a", f"{{device: 'cuda:{'1' * 5000}'}}"))
    assert "match.name must be a string, not [" in refused(tmp_path, "- match: {name: &a [[1], [2]]}\n  replace: {}")
    bomb = "- &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"- &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert "more than 20000 values, with aliases written out" in refused(tmp_path, bomb)


def test_a_missing_rules_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimize_config_path=.*none\.yaml: cannot be read"):
        read_placement(tmp_path / "none.yaml", ())
