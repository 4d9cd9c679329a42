"""The check of the kernels of recurrent layers at start, by Triton's interpreter, and on a GPU if there is one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ballast.model.hybrid.recurrent import triton_convolution, triton_recurrence
from ballast.model.hybrid.recurrent.triton_recurrence import TritonRecurrence
from ballast.model.hybrid.startup.recurrent_check import Trial, recurrent_kernels
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import RecurrentMixer
from devkit.kernels.interpreted_recurrence import interpret_recurrence

EPS = 1e-6
NET = DeltaNetSpec(num_heads=4, num_key_heads=2, key_dim=32, v_dim=32, conv_taps=4)
KIMI = KimiDeltaSpec(num_heads=2, head_dim=32, conv_taps=4)
NETS: dict[str, RecurrentMixer] = {
    "grouped": NET,
    "split": replace(NET, num_heads=6, heads_alternate=True, v_dim=64, beta_layout="split", gate="sigmoid"),
    "rows": KIMI,
    "bounded rows": replace(KIMI, num_heads=1, head_dim=64, conv_taps=2, lower_bound=-5.0),
}
PUBLISHED: dict[str, RecurrentMixer] = {
    "Qwen3-Next": DeltaNetSpec(32, 16, 128, 128, conv_taps=4),
    "Qwen3.5": DeltaNetSpec(64, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split"),
    "Qwen3.8-Flash-Next": DeltaNetSpec(
        48, 16, 128, 128, conv_taps=4, heads_alternate=True, beta_layout="split", gate="sigmoid"
    ),
    "Kimi Linear": KimiDeltaSpec(num_heads=32, head_dim=128, conv_taps=4),
    "GLM-5.3-Flash": KimiDeltaSpec(num_heads=64, head_dim=128, conv_taps=4, lower_bound=-5.0),
}


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where the kernels run in this test."""
    if request.param == "cuda":
        return torch.device("cuda:0")
    interpret_recurrence(monkeypatch)
    return torch.device("cpu")


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_correct_kernels_pass_the_check_at_start(device: torch.device, net: RecurrentMixer) -> None:
    recurrent_kernels(net, EPS, device)


@pytest.mark.parametrize(
    ("net", "module", "name", "output", "reason"),
    [
        (NET, "conv_kernels", "convolve_one_each", "out", "convolutions"),
        (NET, "conv_kernels", "convolve_one_each", "states", "convolutions"),
        (NET, "conv_kernels", "convolve", "out", "convolutions"),
        (NET, "conv_kernels", "keep_inputs", "states", "last inputs"),
        (NET, "delta_kernels", "prepare", "betas", "values"),
        (NET, "delta_kernels", "prepare", "log_decays", "values"),
        (NET, "delta_kernels", "update_one_each", "out", "values"),
        (NET, "delta_kernels", "update_one_each", "states", "values"),
        (NET, "delta_kernels", "gated_norm", "values", "normed values"),
        (NET, "chunk_kernels", "solve_chunks", "scores", "values"),
        (NET, "chunk_kernels", "pass_chunks", "states", "states"),
        (KIMI, "row_decay_kernels", "prepare_rows", "log_decays", "values"),
        (KIMI, "row_decay_kernels", "score_blocks", "scores", "values"),
        (KIMI, "row_decay_kernels", "invert_chunks", "overlaps", "values"),
        (KIMI, "row_decay_kernels", "fade_chunks", "chunk_decays", "values"),
        (KIMI, "delta_kernels", "update_one_each", "out", "values"),
        (KIMI, "chunk_kernels", "pass_chunks", "out", "values"),
    ],
)
def test_an_incorrect_kernel_is_detected_at_start(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    net: RecurrentMixer,
    module: str,
    name: str,
    output: str,
    reason: str,
) -> None:
    """A result of any kernel that is 1.5 times as large."""
    user = triton_convolution if module == "conv_kernels" else triton_recurrence
    own = getattr(user, module)
    right = getattr(own, name)

    class Wrong:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **known: Any) -> None:
                right[grid](*arguments, **known)
                arguments[right.arg_names.index(output)].mul_(1.5)

            return launch

    others = {each: getattr(own, each) for each in vars(own) if not each.startswith("_")}
    monkeypatch.setattr(user, module, SimpleNamespace(**others | {name: Wrong()}))
    found = Trial(net, EPS, device).why_wrong(TritonRecurrence(net, EPS))
    assert found is not None
    assert found.startswith(f"{reason} differ from the plain implementation's by")


def test_kernels_that_do_not_compile_end_the_start(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("PTX is not supported\nand more")

    monkeypatch.setattr(TritonRecurrence, "gated_norm", refused)
    expected = r"^linear attention does not work on this GPU: .*PTX is not supported; use --device cpu$"
    with pytest.raises(ValueError, match=expected):
        recurrent_kernels(NET, EPS, device)


@pytest.mark.gpu
@pytest.mark.parametrize("net", PUBLISHED.values(), ids=PUBLISHED)
def test_kernels_of_published_sizes_pass_the_check_at_start(net: RecurrentMixer) -> None:
    recurrent_kernels(net, EPS, torch.device("cuda:0"))
