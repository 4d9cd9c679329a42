"""Kimi's models, which differ in positions and epsilon alone. What a row is: `ballast.families.deepseek.models`."""

from __future__ import annotations

from ballast.families.family import (
    EPSILON,
    SIGMOID,
    THETA,
    Dimensions,
    KnownModel,
    routing_values,
    yarn_values,
)

_K2 = Dimensions(7168, 18432, 64, 1536, 512, 128, 64, 128, 384, 8, 1, 2048)
_SHARED = routing_values(SIGMOID, (1, 1), 2.827, norm=True) | {THETA: 50000.0}

MODELS = (
    KnownModel("Kimi K2", _K2, _SHARED | yarn_values(32.0, 1.0, 0.1) | {EPSILON: 1e-6}),
    KnownModel("Kimi K2-0905", _K2, _SHARED | yarn_values(64.0, 1.0, 0.1) | {EPSILON: 1e-6}),
    KnownModel("Kimi K2-Thinking", _K2, _SHARED | yarn_values(64.0, 1.0, 0.1) | {EPSILON: 1e-5}),
    KnownModel("Kimi K2.5, K2.6 or K2.7-Code", _K2, _SHARED | yarn_values(64.0, 32.0, 0.1) | {EPSILON: 1e-5}),
)
