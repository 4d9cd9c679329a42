"""From a checked body to a request that the engine can run: template, tokens, limits. Pure, and slow enough for a
thread of its own: nothing here may run on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ballast.engine.engine import Limits
from ballast.engine.request import SamplingParams
from ballast.errors import RequestError
from ballast.server.openai_request import ChatCompletionRequest, CompletionRequest, GenerationRequest, to_sampling
from ballast.server.prompt import render_prompt
from ballast.text.loading import Text

THINK_OPENING = "<think>\n"


@dataclass(frozen=True, slots=True)
class Job:
    """A request ready for the engine, and what its text needs afterwards."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: tuple[str, ...]
    hidden_ids: frozenset[int]
    """Stop tokens: the one that ends the request is not part of its text."""
    opening: str = ""
    """Text that the reply begins with although the prompt holds it already."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares every request of one model."""

    text: Text
    limits: Limits
    force_think: bool = False

    def chat(self, body: ChatCompletionRequest) -> Job:
        """Render and encode the messages. Raises RequestError."""
        prompt = render_prompt(self.text, body, always_think=self.force_think)
        ids = self._encode(prompt, "messages", self.text.tokenizer.encode_prompt)
        name, asked = "max_tokens", body.max_tokens
        if body.max_completion_tokens is not None:
            name, asked = "max_completion_tokens", body.max_completion_tokens
        return self._job(body, ids, "messages", name, asked, opening=THINK_OPENING if self.force_think else "")

    def completion(self, body: CompletionRequest) -> Job:
        """Encode the prompt; token ids are taken as they are. Raises RequestError."""
        tokenizer = self.text.tokenizer
        if isinstance(body.prompt, str):
            ids = self._encode(
                body.prompt, "prompt", lambda prompt: tokenizer.encode(prompt, add_bos=tokenizer.add_bos)
            )
        else:
            ids = body.prompt
            if len(ids) >= self.limits.max_model_tokens:
                self._refuse_length(f"at least {len(ids) + 1} tokens ({len(ids)} in the prompt)", "prompt")
            self._check_ids("prompt", ids)
        return self._job(body, ids, "prompt", "max_tokens", body.max_tokens)

    def _encode(self, prompt: str, prompt_field: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Token ids, unless the text is so long that it cannot fit, whatever its tokens are."""
        least = self.text.tokenizer.fewest_tokens(prompt)
        if least >= self.limits.max_model_tokens:
            self._refuse_length(f"at least {least + 1} tokens (at least {least} in the prompt)", prompt_field)
        return encode(prompt)

    def _job(
        self,
        body: GenerationRequest,
        ids: Sequence[int],
        prompt_field: str,
        max_field: str,
        asked: int | None,
        opening: str = "",
    ) -> Job:
        self._check_ids("stop_token_ids", body.stop_token_ids or ())
        self._check_ids("logit_bias", tuple(body.logit_bias or ()))
        if not ids:
            _refuse(prompt_field, "the prompt is empty; at least one token is needed")
        max_tokens = self._grant(len(ids), prompt_field, max_field, asked)
        if body.min_tokens is not None and body.min_tokens > max_tokens:
            _refuse("min_tokens", f"{body.min_tokens} is more than {max_field}, which is {max_tokens}")
        sampling = to_sampling(body, max_tokens=max_tokens, eos_ids=self.text.tokenizer.eos_ids)
        return Job(tuple(ids), sampling, tuple(body.stop), sampling.stop_token_ids, opening)

    def _grant(self, num_prompt: int, prompt_field: str, max_field: str, asked: int | None) -> int:
        """Tokens this request may generate: what it asked for within the server's cap, or what the limits leave."""
        context, most = self.limits.max_model_tokens, self.limits.max_new_tokens
        granted = min(asked or 1, most)
        if num_prompt + granted > context:
            needs = f"at least {num_prompt + 1} tokens ({num_prompt} in the prompt)"
            if asked is not None:
                needs = f"{num_prompt + granted} tokens ({num_prompt} in the prompt, {granted} for the completion)"
            self._refuse_length(needs, prompt_field, f"Shorten the prompt or lower {max_field}.")
        return granted if asked is not None else min(most, context - num_prompt)

    def _refuse_length(self, needs: str, prompt_field: str, way_out: str = "Shorten the prompt.") -> NoReturn:
        raise RequestError(
            f"This model's maximum context length is {self.limits.max_model_tokens} tokens. However, your request "
            f"needs {needs}. {way_out}",
            param=prompt_field,
            code="context_length_exceeded",
        )

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        size = self.text.tokenizer.vocab_size
        for token_id in ids:
            if not 0 <= token_id < size:
                _refuse(name, f"token id {token_id} is not in the vocabulary, whose ids go from 0 to {size - 1}")


def _refuse(param: str, reason: str) -> NoReturn:
    raise RequestError(f"{param}: {reason}", param=param)
