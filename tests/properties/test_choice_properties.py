"""Text, log probabilities and counts of a choice are consistent, and do not depend on how tokens are grouped."""

from hypothesis import given
from hypothesis import strategies as st

from ballast.engine.request import FinishReason, Output, SamplingParams
from ballast.engine.sampling.logprobs import TokenLogprobs
from ballast.generation.choice import Choice, Piece
from ballast.generation.job import Job, Prompt
from ballast.text.detokenizer import Detokenizer
from devkit.models.vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer(
    merges=[(b"a", b"b"), ("中".encode()[:1], "中".encode()[1:2]), (b"a", "👍".encode()[:1])],
    user_defined=("<think>", "aba", "中👍"),
)
EOS = 1
any_token = st.integers(2, TOKENIZER.vocab_size - 1)
text_tokens = st.text("ab中👍", max_size=8).map(lambda text: TOKENIZER.encode(text, parse_special=False))
streams = st.lists(any_token.map(lambda token_id: [token_id]) | text_tokens, min_size=1, max_size=10).map(
    lambda parts: [token_id for part in parts for token_id in part] or [2 + ord("a")]
)
stops = st.lists(st.text("ab中👍\ufffd", min_size=1, max_size=4), max_size=3)
cuts = st.lists(st.integers(1, 4), max_size=12)


def job(stop: list[str], *, keep: bool, echo: bool) -> Job:
    sampling = SamplingParams(max_tokens=1000, logprobs=0, stop_token_ids=frozenset({EOS}))
    return Job((Prompt((0, 5, 6), 1),), sampling, tuple(stop), frozenset({EOS}), include_stop=keep, echo=echo)


def outputs(ids: list[int], sizes: list[int], reason: FinishReason) -> list[Output]:
    """Outputs with several tokens each, as with speculative decoding."""
    made, at = [], 0
    for size in [*sizes, len(ids)]:
        part = tuple(ids[at : at + size])
        if not part:
            break
        at += len(part)
        scores = tuple(TokenLogprobs(token_id, -float(token_id)) for token_id in part)
        made.append(Output(part, reason if at == len(ids) else None, 3, logprobs=scores))
    return made


def play(job: Job, made: list[Output]) -> tuple[list[Piece], Choice]:
    choice = Choice(0, job, job.prompts[0], TOKENIZER)
    prompt_scores = [TokenLogprobs(5, -1.0), TokenLogprobs(6, -2.0)]
    pieces = []
    for output in made:
        pieces.append(choice.take(output, prompt_scores))
        if choice.finish_reason:
            break
    return pieces, choice


@given(streams, stops, cuts, st.booleans(), st.booleans(), st.booleans())
def test_a_choice_is_the_same_for_any_grouping_of_tokens(
    ids: list[int], stop: list[str], sizes: list[int], ends: bool, keep: bool, echo: bool
) -> None:
    ids = [*ids, EOS] if ends else ids
    reason = FinishReason.STOP if ends else FinishReason.LENGTH
    requested = job(stop, keep=keep, echo=echo)
    whole, alone = play(requested, outputs(ids, [], reason))
    pieces, choice = play(requested, outputs(ids, sizes, reason))

    text = "".join(piece.text for piece in pieces)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert text == "".join(piece.text for piece in whole)
    assert tokens == [token for piece in whole for token in piece.tokens]
    assert (choice.completion_tokens, choice.finish_reason) == (alone.completion_tokens, alone.finish_reason)

    # Every counted token has an entry: in order, without gaps, with the offset of its text.
    prompt = [5, 6] if echo else []
    assert [token.token_id for token in tokens] == [*prompt, *ids[: choice.completion_tokens]]
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids[: choice.completion_tokens]
    assert [token.offset for token in tokens] == sorted(token.offset for token in tokens)
    assert all(token.offset <= len(text) for token in tokens)
    if not stop:
        assert choice.completion_tokens == len(ids)


@given(streams, stops, cuts)
def test_no_token_is_sent_before_its_text(ids: list[int], stop: list[str], sizes: list[int]) -> None:
    pieces, choice = play(job(stop, keep=False, echo=False), outputs(ids, [1] * len(ids), FinishReason.LENGTH))
    shown = ""
    for piece in pieces:
        shown += piece.text
        if choice.finish_reason is None:
            assert all(token.offset <= len(shown) for token in piece.tokens)


@given(streams, stops)
def test_a_stop_string_is_included_on_request(ids: list[int], stop: list[str]) -> None:
    (cut, *_), choice = play(job(stop, keep=False, echo=False), outputs(ids, [], FinishReason.LENGTH))
    (kept, *_), _ = play(job(stop, keep=True, echo=False), outputs(ids, [], FinishReason.LENGTH))
    if choice.finish_reason == "stop":
        assert kept.text.startswith(cut.text)
        assert kept.text[len(cut.text) :] in stop
    else:
        assert kept == cut


@given(streams)
def test_the_text_is_the_decoded_text(ids: list[int]) -> None:
    (piece,), _ = play(job([], keep=False, echo=False), outputs(ids, [], FinishReason.LENGTH))
    assert piece.text == TOKENIZER.decode(ids)
    decoder = Detokenizer(TOKENIZER)
    for token, token_id in zip(piece.tokens, ids, strict=True):
        assert token.offset == decoder.num_chars
        decoder.push((token_id,))
