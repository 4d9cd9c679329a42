"""`ballast profile` counts the experts that a model chooses, and `ballast plan` uses the counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ballast import cli
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import engine_settings
from ballast.engine.startup.loading import load_runner
from ballast.model.metadata import read_spec
from ballast.moe.profile import read_profile
from ballast.profiling import count_uses
from ballast.tiny import write_built_in
from ballast.weights.gguf import open_gguf

OPTIONS = ["--cache_lens", "512", "--max_new_tokens", "16", "--max_batch_size", "2", "--cpu_threads", "2"]
OPTIONS += ["--numa", "off"]


def profile(folder: Path, *lines: object) -> int:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = ["profile", str(prompts), "--out", str(folder / "found.json"), "--device", "cpu", *OPTIONS]
    return cli.exit_code(lambda: cli.main(command))


def test_every_token_counts_its_experts_in_every_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = {"token_ids": [5, 6, 7, 8, 9], "max_tokens": 1}
    assert profile(tmp_path, {"prompt": "Hello there."}, ids, {"token_ids": [3] * 20, "max_tokens": 4}) == 0
    gguf = open_gguf(write_built_in(tmp_path / "built-in").gguf)
    spec = read_spec(gguf, None)
    shape = (len(spec.routed_layers), spec.routing.num_experts)
    found = read_profile(tmp_path / "found.json", gguf, spec.name, *shape)
    assert found.model == spec.name
    assert found.num_tokens >= 5 + 20 + 3 + 2
    assert (found.uses.sum(1) == found.num_tokens * spec.routing.num_experts_used).all()
    assert "3 prompts" in capsys.readouterr().out
    plan = ["plan", "--json", "--device", "cuda", "--vram_limit", "2GiB", "--gpu_experts", "1", *OPTIONS]
    assert cli.main([*plan, "--expert_profile", str(tmp_path / "found.json")]) == 0
    counts = json.loads(capsys.readouterr().out)["device"]["resident_experts"]
    assert counts.index(1) == found.uses.max(1).argmax(), "the most used expert"

    assert profile(tmp_path, ids) == 0
    assert read_profile(tmp_path / "found.json", gguf, spec.name, *shape).num_tokens == 5


def test_computations_before_the_prompts_are_not_counted(tmp_path: Path) -> None:
    gguf = open_gguf(write_built_in(tmp_path).gguf)
    spec = read_spec(gguf, None)
    settings = engine_settings(cli.serve_config([*OPTIONS, "--device", "cpu"]))
    runner = load_runner(gguf, spec, spec.vocab_size, settings)
    requested = SamplingParams(max_tokens=2, temperature=0.0)
    num_tokens, uses = count_uses(runner, spec, settings, [Request("first", tuple(range(5, 15)), requested)])
    assert num_tokens == 11
    again, same = count_uses(runner, spec, settings, [Request("second", tuple(range(5, 15)), requested)])
    assert (again, same.tolist()) == (num_tokens, uses.tolist())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([1, 2], "line 1: expected"),
        ({"prompt": "a", "token_ids": [1]}, "line 1: expected"),
        ({"prompt": 5}, "line 1: prompt must be a string"),
        (
            {"prompt": "a", "temperature": 1},
            "line 1: unknown keys temperature; allowed are prompt, token_ids, max_tokens",
        ),
        ({"token_ids": [1, -1]}, "line 1: token_ids must be a list of whole numbers from 0 to "),
        ({"token_ids": []}, "line 1: the prompt has 0 tokens; expected 1 to "),
        ({"token_ids": [1] * 600}, "line 1: the prompt has 600 tokens; expected 1 to "),
        ({"prompt": "a", "max_tokens": 17}, "line 1: max_tokens is 17; expected 1 to max_new_tokens, 16"),
    ],
)
def test_unservable_prompts_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: object, message: str
) -> None:
    assert profile(tmp_path, line) == 2
    assert message in capsys.readouterr().err


def test_a_line_of_plain_text_is_refused_with_the_expected_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello there\n")
    assert cli.exit_code(lambda: cli.main(["profile", str(prompts), "--device", "cpu", *OPTIONS])) == 2
    assert (
        'line 1: expected {"prompt": "a text"} or {"token_ids": [1, 2]}, this is not valid JSON'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("out", "reason"), [("none/found.json", "there is no folder"), (".", "is a folder")])
def test_a_profile_that_cannot_be_written_is_refused_before_any_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, reason: str
) -> None:
    command = ["profile", str(tmp_path / "no-prompts"), "--out", str(tmp_path / out), "--device", "cpu", *OPTIONS]
    assert cli.exit_code(lambda: cli.main(command)) == 2
    message = capsys.readouterr().err
    assert f"out={tmp_path / out}: " in message
    assert reason in message


def test_a_file_without_prompts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(tmp_path) == 2
    assert "contains no prompt" in capsys.readouterr().err
