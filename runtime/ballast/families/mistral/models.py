"""Mistral's models with DeepSeek's arithmetic. What a row is: `ballast.families.deepseek.models`."""

from __future__ import annotations

from ballast.families.family import EPSILON, SOFTMAX, THETA, Dimensions, KnownModel, routing_values, yarn_values

_LARGE_3 = Dimensions(7168, 16384, 128, 1536, 512, 128, 64, 128, 128, 4, 1, 4096)

MODELS = (
    KnownModel(
        "Mistral Large 3",
        _LARGE_3,
        routing_values(SOFTMAX, (1, 1), 1.0, norm=True)
        | yarn_values(36.0, 32.0, 0.1)
        | {"rope.scaling.original_context_length": 8192, "attention.temperature_scale": 0.1}
        | {EPSILON: 1e-6, THETA: 10000.0},
    ),
)
