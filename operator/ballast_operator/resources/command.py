"""The arguments of `ballast serve` for a spec."""

from __future__ import annotations

import posixpath

from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.names import ADMIN_PORT
from ballast_operator.resources.volumes import KEYS_DIRECTORY, MODEL_DIRECTORY, RULES_DIRECTORY, rules_key


def engine_arguments(spec: InferenceServiceSpec) -> list[str]:
    """Every setting by name, those of the spec that stand at their default as well."""
    engine = spec.engine
    options: dict[str, object] = {
        "host": "0.0.0.0",  # noqa: S104  a pod's own network
        "port": spec.endpoint.port,
        "admin_port": ADMIN_PORT,
        **_model(spec),
        "max_batch_size": engine.max_batch_size,
        "max_new_tokens": engine.max_new_tokens,
        "cache_lens": engine.cache_lens,
        "chunk_size": engine.chunk_size,
        "prefill_chunk_size": engine.prefill_chunk_size,
        "backend_type": engine.backend_type,
        "drain_timeout_s": engine.drain_timeout_seconds,
        "device": "auto" if spec.resources.gpus else "cpu",
        "log_format": "json",
        "api_key_file": f"{KEYS_DIRECTORY}/{spec.endpoint.auth.secret_ref.key}" if spec.endpoint.auth else None,
    }
    if engine.placement_rules is not None:
        options["optimize_config_path"] = f"{RULES_DIRECTORY}/{rules_key(engine.placement_rules)}"
    words = ["serve"]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    if engine.force_think:
        words.append("--force_think")
    return [*words, *engine.extra_args]


def _model(spec: InferenceServiceSpec) -> dict[str, object]:
    model = spec.model
    if model.source.builtin is not None:
        return {"served_model_name": model.served_name}
    return {
        "gguf_path": _inside(model.gguf_path),
        "model_path": None if model.config_path is None else _inside(model.config_path),
        "served_model_name": model.served_name,
    }


def _inside(path: str) -> str:
    return posixpath.normpath(posixpath.join(MODEL_DIRECTORY, path))
