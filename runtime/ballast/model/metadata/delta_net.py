"""Determines which layers of a file are linear attention with recurrent state, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from ballast.errors import shown
from ballast.model.layers.delta_net import DeltaNetSpec
from ballast.model.metadata.keys import Keys

_LAYERS_KEY, _INTERVAL_KEY = "attention.recurrent_layers", "full_attention_interval"
_USUAL_INTERVAL = 4
"""In files that name neither layers nor interval, every fourth layer is attention."""
_MOST_HEADS = 1024
_MOST_WIDTH = 512
_MOST_TAPS = 16
# Far above any model's. They bound what a state takes.
_WIDTH_MULTIPLE = 32
"""Of the widths of heads; the kernels compute as many columns of a state together."""
_MOST_STATE_BYTES = 2 << 30
"""Of a sequence. Kimi-K3, with 2.8T weights, has 465 MB."""


def recurrent_layers(keys: Keys, num_layers: int) -> tuple[bool, ...]:
    """For each layer, whether it has recurrent state instead of attention. Raises ModelError for senseless keys."""
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


def read_delta_net(keys: Keys, is_recurrent: Sequence[bool]) -> DeltaNetSpec:
    """The recurrent layers'; `is_recurrent`: of each layer. Raises ModelError for a key that is missing, senseless or
    absurd."""
    num_heads = _bounded(keys, "ssm.time_step_rank", _MOST_HEADS)
    num_key_heads = _bounded(keys, "ssm.group_count", _MOST_HEADS)
    if num_heads % num_key_heads:
        raise keys.wrong("ssm.group_count", f"a divisor of ssm.time_step_rank, which is {num_heads}")
    width = _bounded(keys, "ssm.state_size", _MOST_WIDTH)
    if width % _WIDTH_MULTIPLE:
        raise keys.wrong("ssm.state_size", f"a multiple of {_WIDTH_MULTIPLE}")
    if keys.whole("ssm.inner_size") != num_heads * width:
        raise keys.wrong("ssm.inner_size", f"{num_heads * width}, ssm.time_step_rank times ssm.state_size")
    taps = _bounded(keys, "ssm.conv_kernel", _MOST_TAPS, minimum=2)
    first = f"blk.{is_recurrent.index(True)}"
    mixer = DeltaNetSpec(
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        key_dim=width,
        v_dim=width,
        conv_taps=taps,
        heads_alternate=keys.architecture.delta_net == "alternating",
        splits_gates=keys.has_tensor(f"{first}.ssm_beta.weight"),
        is_grouped=keys.has_tensor(f"{first}.ssm_in.weight"),
    )
    num_recurrent = sum(is_recurrent)
    state_bytes = 4 * num_recurrent * sum(state.size for state in mixer.states)
    if state_bytes > _MOST_STATE_BYTES:
        raise keys.refuse(
            f"{keys.full('ssm.state_size')}={width} with {num_heads} heads in {num_recurrent} layers: the recurrent "
            f"state of a sequence takes {state_bytes} bytes; expected at most {_MOST_STATE_BYTES}"
        )
    return mixer


def _bounded(keys: Keys, key: str, most: int, minimum: int = 1) -> int:
    value = keys.whole(key, minimum=minimum)
    if value > most:
        raise keys.wrong(key, f"a whole number, at least {minimum} and at most {most}")
    return value
