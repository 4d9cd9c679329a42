"""The arguments of `ballast serve` for a spec."""

from __future__ import annotations

import posixpath

from ballast_operator.api.sources.cached_source import FoundModel
from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.folders import KEYS_DIRECTORY, KV_DIRECTORY, MODEL_DIRECTORY, PACKED_DIRECTORY, RULES_DIRECTORY
from ballast_operator.names import ADMIN_PORT
from ballast_operator.resources.volumes import rules_key


def engine_arguments(spec: InferenceServiceSpec, cached: FoundModel | None = None) -> list[str]:
    """The arguments: every setting by name, including defaults. `cached`: the model of source.cache."""
    pulled = spec.model.source.pulled or cached
    words = ["serve", *([pulled.name] if pulled is not None else ())]
    for name, value in engine_options(spec, cached).items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return [*words, *spec.engine.extra_args]


def engine_options(spec: InferenceServiceSpec, cached: FoundModel | None = None) -> dict[str, object]:
    """The options that the operator sets, by name. True: a flag; None: this spec does not set it."""
    engine, rules = spec.engine, spec.engine.placement_rules
    return {
        "host": "0.0.0.0",  # noqa: S104  a pod's own network
        "port": spec.endpoint.port,
        "admin_port": ADMIN_PORT,
        **_model(spec, cached),
        "max_batch_size": engine.max_batch_size,
        "max_new_tokens": engine.max_new_tokens,
        "cache_lens": engine.cache_lens,
        "chunk_size": engine.chunk_size,
        "prefill_chunk_size": engine.prefill_chunk_size,
        "max_stall_ms": engine.max_stall_ms,
        "backend_type": engine.backend_type,
        "drain_timeout_s": engine.drain_timeout_seconds,
        "device": requested_device(spec),
        "numa": "single" if spec.numa.policy == "SingleNode" else "auto",
        "log_format": "json",
        "api_key_file": f"{KEYS_DIRECTORY}/{spec.endpoint.auth.secret_ref.key}" if spec.endpoint.auth else None,
        "optimize_config_path": f"{RULES_DIRECTORY}/{rules_key(rules)}" if rules else None,
        "packed_dir": PACKED_DIRECTORY if spec.packed_weights else None,
        "kv_disk_dir": KV_DIRECTORY if spec.kv_disk else None,
        "force_think": True if engine.force_think else None,
    }


def requested_device(spec: InferenceServiceSpec) -> str:
    """The requested device of the engine, unless extraArgs set another."""
    if not spec.resources.gpus:
        return "cpu"
    return "auto" if spec.resources.cpu_fallback else "cuda"


def _model(spec: InferenceServiceSpec, cached: FoundModel | None) -> dict[str, object]:
    model = spec.model
    pulled = model.source.pulled or cached
    mounted = model.source.builtin is None and pulled is None
    return {
        "gguf_path": _inside(model.gguf_path) if mounted else None,
        "model_path": _inside(model.config_path) if mounted and model.config_path is not None else None,
        "served_model_name": model.served_name or (pulled.served_name if pulled is not None else None),
    }


def _inside(path: str) -> str:
    return posixpath.normpath(posixpath.join(MODEL_DIRECTORY, path))
