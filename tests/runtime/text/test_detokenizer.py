"""The detokenizer outputs whole characters, and never a part of a stop string."""

import pytest

from ballast.errors import RequestError
from ballast.families.marks import Mark
from ballast.text.detokenizer import Delta, Detokenizer
from ballast.text.tokenizer import Tokenizer
from devkit.models.vocabulary import byte_tokenizer

BOS_ID, EOS_ID = 0, 1


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte, and three words that are one token each."""
    return byte_tokenizer(user_defined=("STOP", "xSTOPy", "👍"))


def word(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.id_of(text)
    assert token_id is not None
    return token_id


def by_bytes(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=False)


def pushed(detokenizer: Detokenizer, token_ids: list[int]) -> list[Delta]:
    """The deltas of each pushed token and of the end."""
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.finish()]


def test_a_character_is_emitted_with_its_last_byte(tokenizer: Tokenizer) -> None:
    deltas = pushed(Detokenizer(tokenizer), by_bytes(tokenizer, "aé👍中"))
    assert [delta.text for delta in deltas] == ["a", "", "é", "", "", "", "👍", "", "", "中", ""]


def test_a_joined_emoji_is_emitted_in_whole_characters(tokenizer: Tokenizer) -> None:
    family = "👩\u200d👩\u200d👧"
    deltas = pushed(Detokenizer(tokenizer), by_bytes(tokenizer, family))
    assert "".join(delta.text for delta in deltas) == family
    assert {delta.text for delta in deltas} == {"", "👩", "\u200d", "👧"}


def test_a_character_that_never_ends_becomes_one_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(by_bytes(tokenizer, "a👍")[:-1]).text == "a"
    assert detokenizer.finish() == Delta("\ufffd", False, 0)


def test_an_incomplete_character_is_replaced_immediately(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    half = by_bytes(tokenizer, "中")[:2]
    assert [detokenizer.push(ids).text for ids in (half, by_bytes(tokenizer, "b"))] == ["", "\ufffdb"]


def test_control_tokens_are_counted_and_not_shown(tokenizer: Tokenizer) -> None:
    ids = [BOS_ID, *by_bytes(tokenizer, "hi"), EOS_ID]
    assert Detokenizer(tokenizer).push(ids) == Delta("hi", False, 4)
    shown = Detokenizer(tokenizer, skip_control=False).push(ids)
    assert shown.text == tokenizer.decode(ids, skip_control=False)


def test_a_stop_string_across_tokens_is_removed_completely(tokenizer: Tokenizer) -> None:
    deltas = pushed(Detokenizer(tokenizer, ["###"]), by_bytes(tokenizer, "ab###cd"))
    assert [delta.text for delta in deltas] == ["a", "b", "", "", "", "", "", ""]
    assert [delta.stopped for delta in deltas] == [False] * 4 + [True] * 4


def test_tokens_are_counted_up_to_the_one_that_completes_the_stop(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["##"])
    assert detokenizer.push(by_bytes(tokenizer, "ab")).num_tokens == 2
    assert detokenizer.push(by_bytes(tokenizer, "c##defgh")) == Delta("c", True, 3)
    assert detokenizer.push(by_bytes(tokenizer, "more")) == Delta("", True, 0)
    assert detokenizer.finish() == Delta("", True, 0)


def test_a_stop_string_inside_one_token_keeps_the_text_before_it(tokenizer: Tokenizer) -> None:
    ids = [*by_bytes(tokenizer, "a"), word(tokenizer, "xSTOPy"), *by_bytes(tokenizer, "b")]
    assert Detokenizer(tokenizer, ["STOP"]).push(ids) == Delta("ax", True, 2)


def test_a_stop_string_that_is_one_token(tokenizer: Tokenizer) -> None:
    ids = [*by_bytes(tokenizer, "a"), word(tokenizer, "STOP")]
    assert Detokenizer(tokenizer, ["STOP"]).push(ids) == Delta("a", True, 2)


def test_text_that_only_began_like_a_stop_string_is_emitted(tokenizer: Tokenizer) -> None:
    deltas = pushed(Detokenizer(tokenizer, ["aab"]), by_bytes(tokenizer, "aaac"))
    # After "aaa" only the first character can no longer begin "aab".
    assert [delta.text for delta in deltas] == ["", "", "a", "aac", ""]


def test_held_back_text_is_emitted_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["\n\nUser:"])
    assert detokenizer.push(by_bytes(tokenizer, "done\n\nUse")).text == "done"
    assert detokenizer.finish() == Delta("\n\nUse", False, 0)


def test_a_stop_string_completed_by_the_last_token_is_cut_off(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["end"])
    assert detokenizer.push(by_bytes(tokenizer, "the end")) == Delta("the ", True, 7)


def test_at_most_the_longest_stop_minus_one_character_is_held_back(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["aaab", "ab"])
    text = "".join(detokenizer.push(by_bytes(tokenizer, "a")).text for _ in range(20))
    assert len(text) == 17


@pytest.mark.parametrize(
    ("stop", "text", "shown"),
    [
        (["abcd", "c"], "xabcd", "xab"),  # "c" is complete before "abcd" is
        (["cd", "abcd"], "xabcd", "x"),  # both match: the longest wins
        (["bcd", "abce"], "xabcd", "xa"),  # one match takes precedence over the other
        (["aba", "bab"], "xabab", "x"),
        (["aabaaac"], "aabaaabaaac", "aaba"),  # it starts again inside itself
        (["b", "b"], "ab", "a"),
        (["中文", "文"], "看中国文", "看中国"),
    ],
)
def test_of_overlapping_stops_the_first_to_be_complete_wins(
    tokenizer: Tokenizer, stop: list[str], text: str, shown: str
) -> None:
    ids = by_bytes(tokenizer, text)
    assert Detokenizer(tokenizer, stop).push(ids).text == shown
    assert "".join(delta.text for delta in pushed(Detokenizer(tokenizer, stop), ids)) == shown


def test_a_stop_string_is_not_found_in_the_bytes_of_other_characters(tokenizer: Tokenizer) -> None:
    ids = by_bytes(tokenizer, "中")
    delta = Detokenizer(tokenizer, ["\ufffd"]).push(ids)
    assert delta == Delta("中", False, 3)


def test_the_replacement_at_the_end_can_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["b\ufffd"])
    assert detokenizer.push(by_bytes(tokenizer, "ab中")[:-1]).text == "a"
    assert detokenizer.finish() == Delta("", True, 0)


def test_an_empty_stop_string_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="must not be empty") as refused:
        Detokenizer(tokenizer, ["a", ""])
    assert refused.value.param == "stop"


def test_a_long_stop_string_that_almost_matches_all_the_time_does_not_hang(tokenizer: Tokenizer) -> None:
    # Comparing every suffix with every prefix would take 10^12 steps here.
    detokenizer = Detokenizer(tokenizer, ["a" * 10_000 + "b"])
    ids = by_bytes(tokenizer, "a" * 100_000)
    shown = "".join(detokenizer.push([token_id]).text for token_id in ids)
    assert len(shown) == 90_000
    assert len(detokenizer.finish().text) == 10_000


CALLS = {
    "<calls>": Mark.CALLS,
    "<call>": Mark.CALL,
    "</call>": Mark.END_CALL,
    "</calls>": Mark.END_CALLS,
    "<tag>": Mark.TAG,
}


@pytest.mark.parametrize(
    ("text", "shown", "stopped"),
    [
        ("a<calls><call>x}</call></calls>", "a<calls><call>x}</call></calls>", False),
        ("a<calls><call>x}</call>}<call>y</call></calls>b}c", "a<calls><call>x}</call>}<call>y</call></calls>b", True),
        ("<call>x}</call>b}c", "<call>x}</call>b", True),
        ("<<tag>calls>}</<tag>calls>", "<<tag>calls>}</<tag>calls>", False),
        ("a}<call>x</call>", "a", True),
        ("</call>}", "</call>", True),
    ],
)
def test_a_stop_string_does_not_match_inside_tool_calls(text: str, shown: str, stopped: bool) -> None:
    tokenizer = byte_tokenizer(user_defined=tuple(CALLS))
    marks = {word(tokenizer, spelled): mark for spelled, mark in CALLS.items()}
    for cut in (1, 1000):
        detokenizer = Detokenizer(tokenizer, ["}"], marks=marks)
        ids = tokenizer.encode(text)
        deltas = [detokenizer.push(ids[at : at + cut]) for at in range(0, len(ids), cut)]
        found = "".join(delta.text for delta in (*deltas, detokenizer.finish()))
        for spelled, mark in CALLS.items():
            found = found.replace(mark, spelled)
        assert (found, detokenizer.stop is not None) == (shown, stopped)


def test_a_stop_string_does_not_continue_into_a_tool_call() -> None:
    tokenizer = byte_tokenizer(user_defined=("<call>",))
    detokenizer = Detokenizer(tokenizer, ["ab"], marks={word(tokenizer, "<call>"): Mark.CALL})
    deltas = pushed(detokenizer, tokenizer.encode("a<call>b"))
    assert [delta.text for delta in deltas] == ["", f"a{Mark.CALL}", "b", ""]
    assert detokenizer.stop is None
