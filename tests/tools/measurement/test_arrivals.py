"""The benchmark with many users: its requests, and its evaluation of replies."""

import json

import pytest

from benchmarks.serving.arrivals import (
    PROMPT_TOKENS,
    REPLY_TOKENS,
    Arrival,
    Poisson,
    Reply,
    Together,
    body,
    figures_of,
    percentile,
    read_case,
    read_events,
    schedule,
    tokens_of,
)

POISSON = Poisson(rate=5, seconds=20)


@pytest.mark.parametrize("case", [Together(3, 8, 2), POISSON], ids=["together", "poisson"])
def test_both_servers_get_the_same_requests_at_the_same_times(case: Together | Poisson) -> None:
    once, again = (schedule(case, 1, seed=7, vocabulary=1000) for _ in range(2))
    assert once == again
    for arrival in once:
        ours, theirs = body("ballast", arrival), body("llama", arrival)
        assert ours["prompt"] == theirs["prompt"] == arrival.prompt
        assert ours["max_tokens"] == theirs["n_predict"] == arrival.new_tokens
        for name in ("temperature", "top_p", "ignore_eos", "stream"):
            assert ours[name] == theirs[name]


def test_all_prompts_of_a_run_differ() -> None:
    prompts = [
        tuple(arrival.prompt)
        for number in range(3)
        for arrival in schedule(Together(4, 16, 1), number, seed=7, vocabulary=1000)
    ]
    assert len(set(prompts)) == 12


def test_arrivals_are_ordered_and_within_their_window_and_lengths() -> None:
    arrivals = schedule(POISSON, 0, seed=7, vocabulary=1000)
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] <= POISSON.seconds
    assert len(arrivals) == 100
    assert all(PROMPT_TOKENS[0] <= len(arrival.prompt) <= PROMPT_TOKENS[1] for arrival in arrivals)
    assert all(REPLY_TOKENS[0] <= arrival.new_tokens <= REPLY_TOKENS[1] for arrival in arrivals)
    assert all(10 <= token < 1000 for arrival in arrivals for token in arrival.prompt)


def test_goodput_counts_first_tokens_within_the_limit_over_both_times() -> None:
    case = Poisson(rate=1, seconds=4, limit_s=2)
    replies = [
        Reply(200, [0.5, 0.6, 0.9], 3),
        Reply(200, [2.0, 2.1], 2),
        Reply(200, [2.5], 1),
        Reply(429),
        Reply(500, error="Internal Server Error"),
    ]
    figures = figures_of(case, [replies, replies[:1]], [8.0, 4.0])
    assert figures["arrived"] == [5, 1]
    assert figures["goodput_per_s"] == [0.25, 0.25]
    assert figures["goodput_in_window_per_s"] == [0.5, 0.25]
    assert figures["good_share"] == [0.4, 1.0]
    assert (figures["refused"], figures["failed"]) == (1, 1)
    assert figures["first_failure"] == "Internal Server Error"
    assert (figures["first_token_p50_s"], figures["first_token_max_s"]) == ([2.0, 0.5], [2.5, 0.5])
    assert (figures["itl_p50_ms"], figures["itl_p99_ms"]) == ([100.0, 100.0], [300.0, 300.0])
    assert figures["tokens_per_s"] == [0.8, 0.8]


def test_each_round_of_users_together_is_a_figure_of_its_own() -> None:
    rounds = [[Reply(200, [0.1], 1), Reply(200, [0.3], 1)], [Reply(200, [0.2], 1), Reply(200, [0.6], 1)]]
    figures = figures_of(Together(2, 8, 1), rounds, [1.0, 2.0])
    assert figures["first_token_slowest_s"] == [0.3, 0.6]
    assert figures["first_token_median_s"] == [0.2, 0.4]
    assert figures["tokens_per_s"] == [2.0, 1.0]
    assert (figures["refused"], figures["failed"]) == (0, 0)


def test_a_round_without_a_served_request_has_no_first_token() -> None:
    assert figures_of(Together(1, 8, 1), [[Reply(429)]], [1.0])["first_token_slowest_s"] == []
    assert figures_of(POISSON, [[]], [1.0])["first_token_p90_s"] == []


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([1, 2, 3, 4], share) for share in (0.25, 0.5, 0.9, 0.99, 1.0)] == [1, 2, 4, 4, 4]
    assert percentile([], 0.5) is None
    assert percentile([0.25], 0.5, 1000) == 250


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        ({"choices": [{"text": "", "token_ids": [5, 6]}]}, 2),
        ({"choices": [{"text": "", "token_ids": None}]}, 0),
        ({"choices": []}, 0),
        ({"content": "", "tokens": [5], "stop": False}, 1),
        ({"content": "", "stop": False}, 0),
    ],
    ids=json.dumps,
)
def test_tokens_are_counted_in_events_of_both_servers(event: dict[str, object], tokens: int) -> None:
    assert tokens_of(event) == tokens


@pytest.mark.parametrize("held_back", [False, True])
def test_the_last_event_of_llama_server_has_the_count(held_back: bool) -> None:
    token = (0.5, b'data: {"content": "a", "tokens": [5], "stop": false}\n')
    last = (0.7, b'data: {"content": "", "tokens": [], "stop": true, "tokens_predicted": 2}\n')
    reply = read_events(200, [last] if held_back else [token, last])
    assert reply == Reply(200, [0.7] if held_back else [0.5], 2)


def test_an_error_within_a_stream_is_a_failure() -> None:
    event = b'data: {"choices": [{"text": "", "token_ids": [5]}]}\n'
    reply = read_events(200, [(0.5, event), (0.6, b'data: {"error": {"message": "no"}}\n')])
    assert "no" in reply.error
    assert figures_of(Together(1, 8, 1), [[reply]], [1.0])["failed"] == 1


def test_cases_are_read_from_the_command_line() -> None:
    assert read_case("together:4:64:1") == Together(4, 64, 1)
    assert read_case("poisson:2:30") == Poisson(2, 30, 2)
    assert read_case("poisson:2:30:0.5") == Poisson(2, 30, 0.5)
    for wrong in ("together:4:64", "poisson:2", "poisson:a:b", "at-once:1:1:1"):
        with pytest.raises(ValueError, match="expected together"):
            read_case(wrong)


def test_a_llama_request_does_not_use_its_prompt_cache() -> None:
    assert body("llama", Arrival(0, [1, 2], 3))["cache_prompt"] is False
