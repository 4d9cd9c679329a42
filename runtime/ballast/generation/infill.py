"""Prompts that ask a model to fill the gap between two texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ballast.errors import RequestError
from ballast.generation.job import Job
from ballast.text.fim import FimTokens
from ballast.text.loading import Text
from ballast.wire.llama_cpp.request import InfillRequest
from ballast.wire.parsing import refuse


def require_fim(text: Text, param: str | None = None) -> FimTokens:
    """The model's tokens for filling gaps. Raises RequestError, for the field `param`, if it has none."""
    if text.fim is None:
        why = "this model's vocabulary has no tokens to fill gaps, such as <|fim_prefix|>, so it was not trained to"
        advice = "leave it out" if param else "/v1/completions continues texts"
        raise RequestError(f"{param}: {why}; {advice}" if param else f"{why}; {advice}", param=param, code="no_infill")
    return text.fim


def filling(
    prefix: Sequence[int],
    suffix: Sequence[int],
    text: Text,
    fim: FimTokens,
    *,
    files: Sequence[int] = (),
    may_begin: bool = True,
) -> list[int]:
    """The prompt for the gap between two texts, with a BOS if the model uses one and `may_begin`. `files`: other files,
    which come first."""
    tokenizer = text.tokenizer
    adds_bos = tokenizer.add_bos and may_begin
    first = [tokenizer.bos_id] if adds_bos and tokenizer.bos_id is not None else []
    return [*first, *files, fim.prefix, *prefix, fim.suffix, *suffix, fim.middle]


def ended_by(job: Job, ends: frozenset[int]) -> Job:
    """The job with further tokens that end its text without being part of it."""
    sampling = replace(job.sampling, stop_token_ids=job.sampling.stop_token_ids | ends)
    return replace(job, sampling=sampling, hidden_ids=job.hidden_ids | ends)


def infill_prompt(body: InfillRequest, text: Text, fim: FimTokens) -> list[int]:
    """BOS, other files, prefix, suffix, prompt: the order of llama.cpp for models without repository tokens. Control
    tokens in client text are read as plain text."""

    def ids(value: object, path: str) -> list[int]:
        if not isinstance(value, str):
            refuse(path, "must be a string")
        return text.tokenizer.encode(value, parse_special=False)

    for n, each in enumerate(body.input_extra):
        if not isinstance(each.get("filename", ""), str):
            refuse(f"input_extra.{n}.filename", "must be a string")
    files = [
        token_id
        for n, each in enumerate(body.input_extra)
        for token_id in ids(each.get("text"), f"input_extra.{n}.text")
    ]
    prefix, suffix = ids(body.input_prefix, "input_prefix"), ids(body.input_suffix, "input_suffix")
    (prompt,) = body.prompt
    return [*filling(prefix, suffix, text, fim, files=files), *ids(prompt, "prompt")]
