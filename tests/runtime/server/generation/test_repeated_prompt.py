"""Number of prompt tokens that later turns repeat."""

from ballast.generation.repeated_prompt import repeated_tokens


def encode(text: str) -> list[int]:
    """Pairs of letters are tokens."""
    return [sum(map(ord, text[at : at + 2])) for at in range(0, len(text), 2)]


def found(prompt: str, *beginnings: str) -> tuple[int, ...]:
    return repeated_tokens(encode(prompt), prompt, beginnings, encode)


def test_it_ends_where_the_texts_part() -> None:
    assert found("abcdefgh", "abcdXX") == (2,)
    assert found("abcdefgh", "abcdef") == (3,)
    assert found("abcdefgh", "abcdefghij") == (4,)
    assert found("abcdefgh", "Xbcd") == ()
    assert found("abcdefgh") == ()


def test_a_token_across_the_end_does_not_count() -> None:
    assert found("abcdefgh", "abcXX") == (1,)
    assert found("abcdefgh", "abcdeXX") == (2,)


def test_positions_are_ascending_and_unique() -> None:
    assert found("abcdefgh", "abcdef", "ab", "abXX") == (1, 3)
