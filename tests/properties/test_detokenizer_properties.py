"""Text and token count do not depend on how a token stream is split into pushes."""

import codecs
import itertools

from hypothesis import given
from hypothesis import strategies as st

from ballast.text.detokenizer import Detokenizer
from devkit.models.vocabulary import byte_tokenizer

# A few merges so that tokens start and end inside characters: ab, bc-halves of 中 and 👍.
TOKENIZER = byte_tokenizer(
    merges=[
        (b"a", b"b"),
        ("中".encode()[:1], "中".encode()[1:2]),
        ("👍".encode()[1:2], "👍".encode()[2:3]),
        (b"a", "👍".encode()[:1]),
    ],
    user_defined=("<think>", "aba", "中👍"),
)
LETTERS = "ab中👍"

any_token = st.integers(0, TOKENIZER.vocab_size - 1)
text_tokens = (st.text(LETTERS, max_size=8) | st.text("ab", max_size=16)).map(
    lambda text: TOKENIZER.encode(text, parse_special=False)
)
streams = st.lists(any_token.map(lambda token_id: [token_id]) | text_tokens, max_size=12).map(
    lambda parts: [token_id for part in parts for token_id in part]
)
stops = st.lists(
    st.text(LETTERS + "\ufffd", min_size=1, max_size=5) | st.text("ab", min_size=3, max_size=8), max_size=4
)


def cut(ids: list[int], at: list[int]) -> list[list[int]]:
    """`ids` split into chunks, some of them empty."""
    bounds = [0, *sorted(position % (len(ids) + 1) for position in at), len(ids)]
    return [ids[start:end] for start, end in itertools.pairwise(bounds)]


def expected(ids: list[int], stop: list[str]) -> tuple[str, bool, int]:
    """The text up to the first completed stop string, found by testing every prefix of the stream."""
    for num_tokens in range(len(ids) + 1):
        final = num_tokens == len(ids)
        text = settled(ids[:num_tokens]) if not final else TOKENIZER.decode(ids)
        ends = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
        if ends:
            end, negative_length = min(ends)
            # Only at the end can the replacement of an incomplete character complete a stop string.
            return text[: end + negative_length], True, num_tokens
    return TOKENIZER.decode(ids), False, len(ids)


def settled(ids: list[int]) -> str:
    """Text of `ids` without an incomplete last character: the part that any continuation keeps."""
    data = b"".join(TOKENIZER.token_bytes(token_id) for token_id in ids if not TOKENIZER.is_control(token_id))
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)


@given(streams, st.lists(st.integers(0, 10**6), max_size=6))
def test_the_pushed_text_is_the_decoded_text(ids: list[int], at: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    deltas = [detokenizer.push(piece) for piece in cut(ids, at)]
    text = "".join(delta.text for delta in [*deltas, detokenizer.finish()])
    assert text == TOKENIZER.decode(ids)
    assert sum(delta.num_tokens for delta in deltas) == len(ids)


@given(streams, stops, st.lists(st.integers(0, 10**6), max_size=6))
def test_a_stop_string_ends_the_text_at_the_same_position_for_any_chunks(
    ids: list[int], stop: list[str], at: list[int]
) -> None:
    detokenizer = Detokenizer(TOKENIZER, stop)
    deltas = [*(detokenizer.push(piece) for piece in cut(ids, at)), detokenizer.finish()]
    text = "".join(delta.text for delta in deltas)
    num_tokens = sum(delta.num_tokens for delta in deltas)
    assert (text, deltas[-1].stopped, num_tokens) == expected(ids, stop)


@given(streams, stops)
def test_streamed_text_is_always_a_prefix_of_the_final_text(ids: list[int], stop: list[str]) -> None:
    detokenizer = Detokenizer(TOKENIZER, stop)
    longest = max(map(len, stop), default=1)
    shown = ""
    for n, token_id in enumerate(ids):
        delta = detokenizer.push([token_id])
        shown += delta.text
        if delta.stopped:
            break
        so_far = settled(ids[: n + 1])
        assert so_far.startswith(shown)
        assert len(so_far) - len(shown) <= longest - 1
    final = shown + detokenizer.finish().text
    assert final == expected(ids, stop)[0]
