"""From a step's logits to the tokens, log probabilities and failures of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels, sched
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.engine.sampling.masks import MaskWorker
from ballast.engine.sampling.sampler import SampledRow, ScoredRow, StepSampler
from ballast.engine.sequence import Sequence
from ballast.errors import RequestError
from ballast.host.isa import chosen_isa

Sampled = tuple[int, TokenLogprobs | None]
"""A token and its log probabilities, if the sequence requests them."""


@dataclass(frozen=True, slots=True)
class RequestedRow:
    """The logits that one row of a plan must produce, as indices of tokens in the batch."""

    seq: int
    scored: range
    """Indices of tokens whose logits score the prompt."""
    samples: bool
    last: int
    """The row's last token index, whose logits are sampled."""
    computed_tokens: int
    """Prompt tokens computed after this step; 0 in rows that decode."""
    first_logit: int
    """Index of the row's first logits among the step's."""

    @property
    def num_logits(self) -> int:
        """Number of the step's logits that belong to this row."""
        return len(self.scored) + self.samples

    @property
    def last_logit(self) -> int:
        """Index of the sampled logits among the step's."""
        return self.first_logit + len(self.scored)


def requested_rows(plan: sched.Plan, sequences: Mapping[int, Sequence]) -> list[RequestedRow]:
    """The rows of a plan that need logits."""
    requested: list[RequestedRow] = []
    num_logits = 0
    bounds = plan.query_indptr.tolist()
    rows = zip(plan.seqs.tolist(), plan.samples.tolist(), plan.kv_lens.tolist(), strict=True)
    for index, (seq, samples, kv_len) in enumerate(rows):
        begin, end = bounds[index], bounds[index + 1]
        to_index = end - kv_len
        unscored = sequences[seq].unscored(begin - to_index, kv_len)
        scored = range(unscored.start + to_index, unscored.stop + to_index)
        computed = min(kv_len, len(sequences[seq].request.prompt_ids)) if index >= plan.num_decode else 0
        assert samples <= 1, "draft tokens are not sampled here yet"
        requested.append(RequestedRow(seq, scored, bool(samples), end - 1, computed, num_logits))
        num_logits += requested[-1].num_logits
    return requested


@dataclass(frozen=True, slots=True)
class RowResults:
    """Results of a step's rows, by sequence."""

    scores: Mapping[int, list[TokenLogprobs]]
    """Log probabilities of prompt tokens."""
    sampled: dict[int, Sampled]
    """In the order of the plan; token 0 for a sequence that failed."""
    errors: dict[int, Exception]


class RowSampler:
    """Samples and scores the rows of one lane's steps. Call `begin` before the forward pass and `results` after it."""

    def __init__(self, pool: kernels.ThreadPool) -> None:
        self._sampler = StepSampler(pool, chosen_isa())
        self._masks = MaskWorker()

    def begin(self, requested: list[RequestedRow], sequences: Mapping[int, Sequence]) -> None:
        """Start computing the masks of grammars."""
        self._masks.begin({row.seq: sequences[row.seq] for row in requested if row.samples})

    def results(
        self, requested: list[RequestedRow], sequences: Mapping[int, Sequence], logits: NDArray[np.float32]
    ) -> RowResults:
        """The results of the rows. Sequences advance by their tokens."""
        errors: dict[int, Exception] = {}
        scores = self._score_prompts(requested, sequences, logits, errors)
        tokens = self._sample(requested, sequences, logits, errors)
        logprobs = self._score_tokens(requested, sequences, tokens, logits, errors)
        sampled: dict[int, Sampled] = {
            row.seq: (0, None) if row.seq in errors else (tokens[row.seq], logprobs.get(row.seq))
            for row in requested
            if row.samples
        }
        return RowResults(scores, sampled, errors)

    def _score_prompts(
        self,
        requested: list[RequestedRow],
        sequences: Mapping[int, Sequence],
        logits: NDArray[np.float32],
        errors: dict[int, Exception],
    ) -> dict[int, list[TokenLogprobs]]:
        """The log probabilities of the prompt tokens that rows score, by sequence. The first failure of each sequence
        goes to `errors`, here and below."""
        rows = []
        for row in requested:
            num_top = sequences[row.seq].request.prompt_logprobs or 0
            for n, token_id in enumerate(sequences[row.seq].take_unscored(len(row.scored))):
                rows.append((row.seq, ScoredRow(row.first_logit + n, token_id, num_top)))
        scores: dict[int, list[TokenLogprobs]] = {}
        for (seq, _), score in zip(rows, self._sampler.score(logits, [row for _, row in rows]), strict=True):
            if isinstance(score, FloatingPointError):
                errors.setdefault(seq, score)
            else:
                scores.setdefault(seq, []).append(score)
        return scores

    def _sample(
        self,
        requested: list[RequestedRow],
        sequences: Mapping[int, Sequence],
        logits: NDArray[np.float32],
        errors: dict[int, Exception],
    ) -> dict[int, int]:
        """The next token of each sequence that samples and has not failed. Advances the grammars."""
        rows: dict[int, SampledRow] = {}
        for row in requested:
            if row.samples and row.seq not in errors:
                try:
                    allowed = self._masks.take(row.seq)
                except RequestError as error:
                    errors[row.seq] = error
                else:
                    rows[row.seq] = SampledRow(row.last_logit, sequences[row.seq].sampler, allowed)
        tokens: dict[int, int] = {}
        for seq, token in zip(rows, self._sampler.sample(logits, list(rows.values())), strict=True):
            try:
                if isinstance(token, FloatingPointError):
                    raise token
                sequences[seq].accept(token)
                tokens[seq] = token
            except (FloatingPointError, RequestError) as error:
                errors[seq] = error
        return tokens

    def _score_tokens(
        self,
        requested: list[RequestedRow],
        sequences: Mapping[int, Sequence],
        tokens: Mapping[int, int],
        logits: NDArray[np.float32],
        errors: dict[int, Exception],
    ) -> dict[int, TokenLogprobs]:
        """The log probabilities of sampled tokens, for the sequences that request them."""
        rows: dict[int, ScoredRow] = {}
        for row in requested:
            num_top = sequences[row.seq].request.sampling.logprobs
            if row.seq in tokens and num_top is not None:
                rows[row.seq] = ScoredRow(row.last_logit, tokens[row.seq], num_top)
        logprobs: dict[int, TokenLogprobs] = {}
        for seq, found in zip(rows, self._sampler.score(logits, list(rows.values())), strict=True):
            if isinstance(found, FloatingPointError):
                errors[seq] = found
            else:
                logprobs[seq] = found
        return logprobs
