"""`ballast profile`: serves some prompts and records how often each routed expert is used."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ballast.config.options import Config
from ballast.documents.small_file import DocumentError, read_text
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.engine.startup.build import EngineSettings, engine_settings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.errors import ConfigError, RequestError
from ballast.host.gpu import check_device
from ballast.model.runner import Runner
from ballast.model.spec import ModelSpec
from ballast.moe.profile import ExpertProfile, check_can_write, fingerprint, write_profile
from ballast.plan import check_memory, device_settings, load_checked_text, open_checked, settle
from ballast.text.loading import Text

_REPLY_TOKENS = 64
"""Tokens to generate for a prompt without `max_tokens`."""
_MAX_PROMPTS_BYTES = 1 << 30
_EXPECTED = '{"prompt": "a text"} or {"token_ids": [1, 2]}'


def run(config: Config, prompts: Path, file: Path, out: TextIO | None = None) -> int:
    """Serve `prompts` with a resolved configuration and write the profile to `file`. All experts are computed by the
    CPU, which counts them. Raises BallastError."""
    for name in config.machine.gpus:
        check_device(name)
    check_can_write(file)
    machine = replace(config.machine, gpu_experts=0, expert_profile=None, pcie_share=0.0)
    if machine.gpus:
        machine = replace(machine, stream_from_tokens=0)
    config = replace(config, machine=machine)
    gguf, spec = open_checked(config.model)
    config, plan = settle(config, gguf, spec)
    check_memory(plan)
    text = load_checked_text(config.model, gguf, spec)
    settings = replace(engine_settings(config), devices=device_settings(plan), kv_host_bytes=0, kv_disk_dir=None)
    requests = read_requests(prompts, text, spec, settings.max_new_tokens, settings.cache_lens)
    runner = load_runner(gguf, spec, text.tokenizer.vocab_size, settings)
    profile = ExpertProfile(spec.name, fingerprint(gguf), *count_uses(runner, spec, settings, requests))
    write_profile(file, profile)
    (out or sys.stdout).write(summary(profile, len(requests), file))
    return 0


def read_requests(file: Path, text: Text, spec: ModelSpec, max_new_tokens: int, cache_lens: int) -> list[Request]:
    """The requests of a file with one per line: {"prompt": "a text"} or {"token_ids": [1, 2]}, and "max_tokens" to set
    the reply's length. Raises ConfigError, which names the line."""
    try:
        lines = read_text(file, _MAX_PROMPTS_BYTES).split("\n")
    except DocumentError as error:
        raise ConfigError("prompts", file, str(error)) from error
    requests = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_request(_entry(line), str(number), text, spec, max_new_tokens, cache_lens))
            except (ValueError, RequestError) as error:
                raise ConfigError("prompts", file, f"line {number}: {error}") from error
    if not requests:
        raise ConfigError("prompts", file, "contains no prompt")
    return requests


def _entry(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected {_EXPECTED}, this is not valid JSON: {error}") from error


def _request(entry: Any, name: str, text: Text, spec: ModelSpec, max_new_tokens: int, cache_lens: int) -> Request:
    if not isinstance(entry, dict) or ("prompt" in entry) == ("token_ids" in entry):
        raise ValueError(f"expected {_EXPECTED}")
    unknown = set(entry) - {"prompt", "token_ids", "max_tokens"}
    if unknown:
        raise ValueError(f"unknown keys {', '.join(sorted(unknown))}; allowed are prompt, token_ids, max_tokens")
    max_tokens = entry.get("max_tokens", min(_REPLY_TOKENS, max_new_tokens))
    if type(max_tokens) is not int or not 1 <= max_tokens <= max_new_tokens:
        raise ValueError(f"max_tokens is {max_tokens}; expected 1 to max_new_tokens, {max_new_tokens}")
    ids = entry.get("token_ids")
    if ids is None:
        if not isinstance(entry["prompt"], str):
            raise ValueError("prompt must be a string")
        ids = text.tokenizer.encode(entry["prompt"], add_bos=True)
    if not isinstance(ids, list) or not all(type(id_) is int and 0 <= id_ < spec.vocab_size for id_ in ids):
        raise ValueError(f"token_ids must be a list of whole numbers from 0 to {spec.vocab_size - 1}")
    most = min(spec.context_length, cache_lens) - max_tokens
    if not 1 <= len(ids) <= most:
        raise ValueError(
            f"the prompt has {len(ids)} tokens; expected 1 to {most}, in addition to {max_tokens} for its reply"
        )
    stops = frozenset(text.tokenizer.eos_ids)
    return Request(name, tuple(ids), SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=stops))


def serve_all(core: EngineCore, requests: Sequence[Request], max_batch_size: int) -> None:
    """Run all requests to completion, `max_batch_size` at a time."""
    waiting: Iterator[tuple[int, Request]] = enumerate(requests, start=1)
    running: set[int] = set()
    while True:
        for seq, request in itertools.islice(waiting, max_batch_size - len(running)):
            core.add(seq, request, seed=seq)
            running.add(seq)
        if not running:
            return
        result = core.step()
        running -= {event.seq for event in result.events if event.finish_reason is not None}
        for _, error in result.failed:
            raise error


def count_uses(
    runner: Runner, spec: ModelSpec, settings: EngineSettings, requests: Sequence[Request]
) -> tuple[int, NDArray[np.int64]]:
    """Serve `requests` and return (tokens, uses of each expert [routed layers, E]). Uses during loading, which tests
    kernels and captures steps, are not counted."""
    before = runner.expert_uses.copy()
    serve_all(EngineCore(runner, scheduler_config(settings)), requests, settings.max_batch_size)
    uses = runner.expert_uses - before
    return int(uses[0].sum()) // spec.routing.num_experts_used, uses


def summary(profile: ExpertProfile, num_prompts: int, file: Path) -> str:
    """A summary for people, with the fraction of uses by the most used experts."""
    num_hot = max(1, profile.uses.shape[1] // 10)
    hottest = np.sort(profile.uses, axis=1)
    share = hottest[:, -num_hot:].sum() / max(1, profile.uses.sum())
    return (
        f"{profile.model}: {num_prompts} prompts, {profile.num_tokens} tokens\n"
        f"  the {num_hot} most used experts of each layer account for {share:.0%} of all uses\n"
        f"  written to {file}; serve with --expert_profile {file}\n"
    )
