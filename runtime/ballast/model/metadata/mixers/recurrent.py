"""Determines which layers of a file are linear attention with recurrent state, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ballast.errors import shown
from ballast.model.layers.delta_net import DeltaNetSpec, MatrixLayout
from ballast.model.layers.kimi_delta import KimiDeltaSpec
from ballast.model.layers.layer import RecurrentMixer
from ballast.model.metadata.keys import Keys, is_number, is_whole

_LAYERS_KEY, _INTERVAL_KEY = "attention.recurrent_layers", "full_attention_interval"
_HEADS_KEY = "attention.head_count_kv"
"""In files of Kimi Linear, 0 for layers with recurrent state."""
_BOUND_KEY = "kda.gate_lower_bound"
_USUAL_INTERVAL = 4
"""In files that name neither layers nor interval, every fourth layer is attention."""
_MAX_HEADS = 1024
_MAX_WIDTH = 512
_MAX_TAPS = 16
_MAX_BOUND = 80.0
# Far above any model's. They bound what a state takes.
_WIDTH_MULTIPLE = 32
"""Widths of heads are multiples of it; the kernels compute as many columns of a state together."""
_MAX_STATE_BYTES = 2 << 30
"""The state of a sequence. Kimi K3, with 2.8T weights, has 465 MB."""


def recurrent_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it has recurrent state instead of attention. Raises ModelError for senseless keys."""
    if keys.architecture.kimi_delta:
        return _layers_without_heads(keys, num_layers)
    if keys.architecture.delta_net is None:
        return (False,) * num_layers
    found = keys.get(_LAYERS_KEY)
    if found is None:
        interval = keys.whole(_INTERVAL_KEY, default=_USUAL_INTERVAL)
        layers = tuple((layer + 1) % interval != 0 for layer in range(num_layers))
        key, value = _INTERVAL_KEY, str(interval)
    else:
        if not isinstance(found, list) or len(found) < num_layers or any(each not in (0, 1) for each in found):
            raise keys.wrong(_LAYERS_KEY, f"true or false for each of {num_layers} layers")
        layers = tuple(bool(each) for each in found[:num_layers])
        key, value = _LAYERS_KEY, shown(found)
    if all(layers):
        raise keys.refuse(f"{keys.full(key)}={value}: no layer has attention; expected at least one that has")
    return layers


def _layers_without_heads(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    heads = keys.get(_HEADS_KEY)
    if not isinstance(heads, list) or len(heads) < num_layers or not all(is_whole(each, 0) for each in heads):
        raise keys.wrong(_HEADS_KEY, f"a whole number for each of {num_layers} layers, 0 for those without attention")
    layers = tuple(each == 0 for each in heads[:num_layers])
    if all(layers):
        raise keys.refuse(f"{keys.full(_HEADS_KEY)}: no layer has attention; expected at least one that has")
    return layers


def read_delta_net(keys: Keys, is_recurrent: Sequence[bool]) -> DeltaNetSpec:
    """The recurrent layers'; `is_recurrent`: of each layer. Raises ModelError for a key that is missing, senseless or
    absurd."""
    num_heads = _bounded(keys, "ssm.time_step_rank", _MAX_HEADS)
    num_key_heads = _bounded(keys, "ssm.group_count", _MAX_HEADS)
    if num_heads % num_key_heads:
        raise keys.wrong("ssm.group_count", f"a divisor of ssm.time_step_rank, which is {num_heads}")
    width = _bounded(keys, "ssm.state_size", _MAX_WIDTH)
    if width % _WIDTH_MULTIPLE:
        raise keys.wrong("ssm.state_size", f"a multiple of {_WIDTH_MULTIPLE}")
    if keys.whole("ssm.inner_size") != num_heads * width:
        raise keys.wrong("ssm.inner_size", f"{num_heads * width}, ssm.time_step_rank times ssm.state_size")
    taps = _bounded(keys, "ssm.conv_kernel", _MAX_TAPS, minimum=2)
    first = f"blk.{is_recurrent.index(True)}"
    mixer = DeltaNetSpec(
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        key_dim=width,
        v_dim=width,
        conv_taps=taps,
        heads_alternate=keys.architecture.delta_net == "alternating",
        gate=keys.architecture.delta_gate,
        product_layout=_layout(keys, first, merged="attn_qkv_gate", grouped="ssm_in", default="split"),
        beta_layout=_layout(keys, first, merged="ssm_beta_alpha", split="ssm_beta", default="grouped"),
    )
    _check_state(keys, mixer, sum(is_recurrent), f"{keys.full('ssm.state_size')}={width}")
    return mixer


def _layout(keys: Keys, layer: str, default: MatrixLayout, **stems: str) -> MatrixLayout:
    """The layout whose tensor a layer has. `stems`: layout → the name of a tensor that only this layout has."""
    layouts: tuple[MatrixLayout, ...] = get_args(MatrixLayout)
    found = (each for each in layouts if each in stems and keys.has_tensor(f"{layer}.{stems[each]}.weight"))
    return next(found, default)


def read_kimi_delta(keys: Keys, is_recurrent: Sequence[bool], num_heads: int) -> KimiDeltaSpec:
    """The recurrent layers' of Kimi Linear; `is_recurrent`: of each layer. Raises ModelError as `read_delta_net`."""
    if keys.get(_BOUND_KEY) is not None and not keys.architecture.bounds_decays:
        raise keys.refuse(f"{keys.full(_BOUND_KEY)}={shown(keys.get(_BOUND_KEY))}: bounded decays are not supported")
    if num_heads > _MAX_HEADS:
        raise keys.wrong("attention.head_count", f"a whole number, at least 1 and at most {_MAX_HEADS}")
    width = _bounded(keys, "kda.head_dim", _MAX_WIDTH)
    if width % _WIDTH_MULTIPLE:
        raise keys.wrong("kda.head_dim", f"a multiple of {_WIDTH_MULTIPLE}")
    taps = _bounded(keys, "ssm.conv_kernel", _MAX_TAPS, minimum=2)
    mixer = KimiDeltaSpec(num_heads, width, taps, _lower_bound(keys))
    _check_state(keys, mixer, sum(is_recurrent), f"{keys.full('kda.head_dim')}={width}")
    return mixer


def _lower_bound(keys: Keys) -> float:
    """Of the logarithms of decays; 0 for none."""
    bound = keys.get(_BOUND_KEY)
    if bound is None:
        return 0.0
    if not is_number(bound) or not -_MAX_BOUND <= bound < 0:
        raise keys.wrong(_BOUND_KEY, f"a number below 0, at least {-_MAX_BOUND:g}")
    return float(bound)


def _check_state(keys: Keys, mixer: RecurrentMixer, num_layers: int, named: str) -> None:
    """Refuse a state that no model has. `named`: the key of its width, with the value."""
    state_bytes = num_layers * sum(state.num_bytes for state in mixer.states)
    if state_bytes > _MAX_STATE_BYTES:
        raise keys.refuse(
            f"{named} with {mixer.num_heads} heads in {num_layers} layers: the recurrent state of a sequence takes "
            f"{state_bytes} bytes; expected at most {_MAX_STATE_BYTES}"
        )


def _bounded(keys: Keys, key: str, most: int, minimum: int = 1) -> int:
    value = keys.whole(key, minimum=minimum)
    if value > most:
        raise keys.wrong(key, f"a whole number, at least {minimum} and at most {most}")
    return value
