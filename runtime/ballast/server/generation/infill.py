"""The prompt that asks a model of DeepSeek's for what stands between two texts."""

from __future__ import annotations

from ballast.errors import RequestError
from ballast.server.wire.llama_cpp.request import InfillRequest
from ballast.server.wire.parsing import refuse
from ballast.text.tokenizer import Tokenizer

BEGIN, HOLE, END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"


def infill_prompt(body: InfillRequest, tokenizer: Tokenizer) -> list[int]:
    """BOS, other files, BEGIN, prefix, HOLE, suffix, END, prompt: the order in which llama.cpp puts them for a model
    that has no tokens of repositories. What a client wrote is read as text alone.

    Raises RequestError for a model whose vocabulary has no such tokens.
    """
    marks = {spelling: tokenizer.id_of(spelling) for spelling in (BEGIN, HOLE, END)}
    if missing := [spelling for spelling, token_id in marks.items() if token_id is None]:
        raise RequestError(
            f"this model's vocabulary has no {missing[0]}, so it was not trained to fill gaps; /v1/completions "
            "continues texts",
            code="no_infill",
        )

    def text(value: object, path: str) -> list[int]:
        if not isinstance(value, str):
            refuse(path, "must be a string")
        return tokenizer.encode(value, parse_special=False)

    for n, each in enumerate(body.input_extra):
        if not isinstance(each.get("filename", ""), str):
            refuse(f"input_extra.{n}.filename", "must be a string")
    begin, hole, end = (token_id for token_id in marks.values() if token_id is not None)
    files = [
        token_id
        for n, each in enumerate(body.input_extra)
        for token_id in text(each.get("text"), f"input_extra.{n}.text")
    ]
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    (prompt,) = body.prompt
    return [
        *first,
        *files,
        begin,
        *text(body.input_prefix, "input_prefix"),
        hole,
        *text(body.input_suffix, "input_suffix"),
        end,
        *text(prompt, "prompt"),
    ]
