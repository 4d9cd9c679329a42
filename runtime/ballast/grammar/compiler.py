"""Compiles grammars for one tokenizer, within limits, and caches them."""

from __future__ import annotations

import threading
from collections import OrderedDict

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ballast.awake_clock import AwakeClock
from ballast.errors import CapacityError, RequestError
from ballast.grammar.constraint import Grammar, ReasoningPrefix, grammar_error
from ballast.grammar.source import Source
from ballast.text.tokenizer import Tokenizer

CACHE_SIZE = 32
LOCK_WAIT_S = 5.0

# Bounds of work and memory in llguidance's own units. One step then takes some 50 ms at most.
_LIMITS = LLParserLimits(
    max_items_in_row=5000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=500_000,
    max_lexer_states=30_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


class GrammarCompiler:
    """Compiles for one vocabulary. Thread-safe, but too slow for the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._vocabulary = _vocabulary(tokenizer)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def compile(self, source: Source, reasoning_prefix: ReasoningPrefix | None = None) -> Grammar:
        """The grammar, which begins after `reasoning_prefix` if there is one.

        Raises RequestError, with the source's field and a reason, for a grammar that is wrong, too large, or beyond
        what can be enforced; CapacityError while other grammars take too long.
        """
        # One at a time, so that grammars never take more than one core.
        if not self._acquire():
            raise CapacityError.busy("the server is compiling other grammars", code="grammar_compiler_busy")
        try:
            matcher = self._compiled.pop(source.text, None) or self._new_matcher(source)
            self._compiled[source.text] = matcher
            if len(self._compiled) > CACHE_SIZE:
                self._compiled.popitem(last=False)
        finally:
            self._lock.release()
        return Grammar(matcher, source.param, self._vocab_size, reasoning_prefix)

    def _acquire(self) -> bool:
        clock = AwakeClock.for_limit(LOCK_WAIT_S)
        while not self._lock.acquire(timeout=LOCK_WAIT_S / 10):
            if clock.now() >= LOCK_WAIT_S:
                return False
        return True

    def _new_matcher(self, source: Source) -> LLMatcher:
        if self._vocabulary is None:
            raise RequestError(
                f"{source.param}: this model's tokenizer has no end token, so no grammar can end a reply",
                param=source.param,
            )
        matcher = LLMatcher(self._vocabulary, source.text, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # a grammar that fails at its first token is refused now
        if matcher.is_error():
            raise grammar_error(matcher, source.param)
        return matcher


class _Bytes:
    """The interface to a tokenizer that llguidance expects."""

    def __init__(self, tokenizer: Tokenizer, eos_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_id
        self.bos_token_id = tokenizer.bos_id
        raw = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        unused = {token_id for token_id, spelled in enumerate(raw) if not spelled}
        self.tokens = [spelled or b"<unused %d>" % token_id for token_id, spelled in enumerate(raw)]
        # In constrained text, letters that spell an added token stay letters; grammars name added tokens by id.
        self.special_token_ids = sorted(tokenizer.added_ids | tokenizer.eos_ids | unused)

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8"), parse_special=False)


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer | None:
    if not tokenizer.eos_ids:
        return None
    eos_id = tokenizer.eos_id if tokenizer.eos_id is not None else min(tokenizer.eos_ids)
    wrapper = TokenizerWrapper(_Bytes(tokenizer, eos_id))
    return LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids))
