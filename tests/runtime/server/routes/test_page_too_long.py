"""A chat that exceeds the model's context continues without its oldest turns, or from a summary."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from devkit.servers.page_steps import ask, chunk, shows
from devkit.servers.process import FAKE, ServerProcess

CONTEXT = 512
"""In tokens. The fake model uses one per letter."""


@pytest.fixture(scope="module")
def server():
    options = ("--max_new_tokens", "100", "--max_batch_size", "1", "--cache_lens", str(CONTEXT))
    with ServerProcess(*options, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def chat(browser, server):
    """A chat of four turns: its URL, and the data that the browser stores for it."""
    page = browser.new_page()
    page.goto(server.url)
    page.locator("#max-tokens").evaluate("field => field.value = 20")
    for turn in "abcd":
        page.locator("#prompt").fill(turn * 100)
        page.keyboard.press("Enter")
        expect(page.locator("article.assistant .figures").last).to_contain_text("20 tokens")
        expect(page.locator("#stop")).to_be_hidden()
    yield page.url, page.evaluate("Object.entries(localStorage)")
    page.close()


@pytest.fixture
def full(page, server, chat):
    """The page with a chat that leaves no room for another turn; its next request is rejected."""
    url, kept = chat
    page.goto(server.url)
    page.evaluate("kept => kept.forEach((entry) => localStorage.setItem(...entry))", kept)
    page.goto(url)
    page.locator("#max-tokens").evaluate("field => field.value = 20")
    page.locator("#prompt").fill("e" * 100)
    page.keyboard.press("Enter")
    expect(page.locator("#too-long")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("maximum context length is 512 tokens")
    return page


def messages(requested):
    return [(each["role"], each["content"][:1]) for each in requested.post_data_json["messages"]]


def test_a_refused_question_stays_and_both_ways_are_offered(full):
    expect(full.locator("#prompt")).to_have_value("e" * 100)
    expect(full.locator("article")).to_have_count(8)
    expect(full.locator("#too-long button")).to_have_text(["Drop the oldest turns", "Start again with a summary"])
    assert Axe().run(full).violations_count == 0


def test_the_oldest_turns_are_dropped_and_the_question_is_answered(full):
    with full.expect_request("**/v1/chat/completions") as requested:
        full.locator("#drop-oldest").click()
    assert messages(requested.value)[-1] == ("user", "e")
    assert messages(requested.value)[0] != ("user", "a")
    expect(full.locator("article.assistant")).to_have_count(5)
    expect(full.locator("#too-long")).to_be_hidden()
    expect(full.locator("#status")).to_have_text("")
    expect(full.locator("#stop")).to_be_hidden()  # a reply is stored when it has ended
    # All turns are still shown, with a line below those that the model does not see, also after a reload.
    line = full.locator(".left-out")
    expect(line).to_contain_text("The model does not see what is above this line.")
    full.reload()
    expect(full.locator("article")).to_have_count(10)
    expect(line).to_have_count(1)
    full.locator("#max-tokens").evaluate("field => field.value = 20")
    full.locator("#prompt").focus()
    with full.expect_request("**/v1/chat/completions") as requested:
        ask(full, "f" * 20)
    assert ("user", "a") not in messages(requested.value)
    assert messages(requested.value)[-1] == ("user", "f")
    expect(full.locator("article.assistant .figures").last).to_contain_text("20 tokens")


def test_all_turns_can_be_sent_again(full):
    full.locator("#drop-oldest").click()
    expect(full.locator("article.assistant")).to_have_count(5)
    expect(full.locator("#stop")).to_be_hidden()
    full.get_by_role("button", name="Send all again").click()
    expect(full.locator(".left-out")).to_have_count(0)
    with full.expect_request("**/v1/chat/completions") as requested:
        ask(full, "g")
    assert messages(requested.value)[0] == ("user", "a")
    expect(full.locator("#too-long")).to_be_visible()


def test_turns_are_dropped_until_the_rest_fits(full):
    full.locator("#prompt").fill("x" * 470)
    requested = []
    full.on("request", lambda request: requested.append(request) if request.method == "POST" else None)
    full.locator("#drop-oldest").click()
    expect(full.locator("article.assistant")).to_have_count(5)
    assert messages(requested[-1]) == [("user", "x")]
    expect(full.locator("#too-long")).to_be_hidden()


def test_a_question_that_exceeds_the_context_alone_is_reported(full):
    full.locator("#prompt").fill("x" * 600)
    full.locator("#drop-oldest").click()
    expect(full.locator("#status")).to_contain_text("Shorten the prompt")
    expect(full.locator("#prompt")).to_have_value("x" * 600)
    expect(full.locator("#stop")).to_be_hidden()
    full.locator("#prompt").fill("")
    ask(full, "short")
    expect(full.locator("article.assistant")).to_have_count(5)


def test_a_chat_starts_again_with_a_summary(full):
    earlier = full.url
    requested = []
    full.on("request", lambda request: requested.append(request) if request.method == "POST" else None)
    full.locator("#system").evaluate("field => field.value = 'Be brief.'")
    full.locator("#sum-up").click()
    expect(full.locator("article.user > .text")).to_have_text(["e" * 100])
    expect(full.locator("article.assistant .figures")).to_contain_text("20 tokens")
    *summing, last = [request.post_data_json["messages"] for request in requested]
    assert len(summing) >= 2, "the chat does not fit in one request"
    assert all(each[-1]["content"].startswith("Summarise the conversation so far") for each in summing)
    turns = [message["content"][:1] for each in summing for message in each if message["role"] == "user"]
    assert [turn for turn in turns if turn != "S"] == list("abcd"), "every turn is summarized once"
    assert [message["role"] for message in last] == ["system", "user"]
    summary = full.locator("article.summary > .text").first.inner_text()
    assert last[0]["content"] == f"Be brief.\n\nSummary of the conversation so far:\n\n{summary}"
    # The new chat has its own URL and a link to the earlier one.
    full.wait_for_url(lambda url: "#chat=" in url and url != earlier)
    full.reload()
    expect(full.locator("article.summary > .text").first).to_have_text(summary)
    expect(full.locator("#system")).to_have_value("Be brief.")
    full.get_by_role("link", name="Open the earlier chat").click()
    expect(full.locator("article")).to_have_count(8)
    assert full.url == earlier
    full.go_back()
    expect(full.locator("article.summary")).to_have_count(1)
    assert Axe().run(full).violations_count == 0


def test_a_summary_that_fails_or_is_stopped_changes_nothing(full):
    def refuse(route):
        route.fulfill(status=429, body=json.dumps({"error": {"message": "full"}}))

    full.route("**/v1/chat/completions", refuse)
    full.locator("#sum-up").click()
    expect(full.locator("#status")).to_have_text("full")
    expect(full.locator("#too-long")).to_be_visible()
    full.route("**/v1/chat/completions", lambda route: route.fulfill(body="data: [DONE]\n\n"))
    full.locator("#sum-up").click()
    expect(full.locator("#status")).to_have_text("the model wrote no summary")
    full.route("**/v1/chat/completions", lambda route: None)  # never answered
    full.locator("#sum-up").click()
    expect(full.locator("#too-long")).to_be_hidden()
    full.locator("#stop").click()
    expect(full.locator("#too-long")).to_be_visible()
    expect(full.locator("#prompt")).to_have_value("e" * 100)
    expect(full.locator("article")).to_have_count(8)
    expect(full.locator("article.summary")).to_have_count(0)


def test_reasoning_is_not_part_of_a_summary(full):
    frames = chunk(reasoning_content="hmm") + chunk(content="They spelled.") + "data: [DONE]\n\n"
    full.route("**/v1/chat/completions", lambda route: route.fulfill(body=frames))
    full.locator("#sum-up").click()
    expect(full.locator("article.summary > .text").first).to_have_text("They spelled.")


def test_a_reply_too_long_to_regenerate_offers_to_drop_the_oldest(full):
    full.locator("#prompt").fill("")
    full.locator("#max-tokens").evaluate("field => field.value = 100")
    full.get_by_role("button", name="Regenerate").last.click()
    expect(full.locator("#too-long")).to_be_visible()
    expect(full.locator("article")).to_have_count(8)
    full.locator("#drop-oldest").click()
    expect(full.locator("article.assistant .figures").last).to_contain_text("100 tokens")
    expect(full.locator("article")).to_have_count(8)
    expect(full.locator(".left-out")).to_have_count(1)


def test_a_reply_that_fills_the_context_is_offered_the_same(page, server):
    page.goto(server.url)
    expect(page.locator("#context-text")).to_contain_text("512")
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": None}
    usage = {"choices": [], "usage": {"prompt_tokens": 500, "completion_tokens": 12}}
    frames = "".join(f"data: {json.dumps(frame)}\n\n" for frame in (end, usage))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=chunk(content="cut") + frames))
    ask(page, "long")
    expect(page.locator("article.assistant > .text")).to_have_text("cut")
    expect(page.locator("#too-long")).to_be_visible()
    shows(page, "whole")
    page.locator("#new").click()
    expect(page.locator("#too-long")).to_be_hidden()
    ask(page, "again")
    expect(page.locator("article.assistant > .text")).to_have_text("whole")


def test_omitted_messages_and_the_summary_are_exported(full, tmp_path):
    full.locator("#drop-oldest").click()
    expect(full.locator("article.assistant")).to_have_count(5)
    expect(full.locator("#stop")).to_be_hidden()
    full.locator("#show-chats").click()
    with full.expect_download() as saved:
        full.locator("#export").click()
    saved.value.save_as(tmp_path / "chats.json")
    exported = json.loads((tmp_path / "chats.json").read_text())
    exported["chats"][0]["summary"] = {"text": "<b>Before</b>", "of": "x"}
    payload = {"name": "c.json", "mimeType": "application/json", "buffer": json.dumps(exported).encode()}
    full.locator("#import-file").set_input_files(payload)
    expect(full.locator("#told")).to_have_text("1 chat imported.")
    full.locator("#kept .title").click()
    expect(full.locator(".left-out")).to_have_count(1)
    expect(full.locator("article.summary > .text").first).to_have_text("<b>Before</b>")
