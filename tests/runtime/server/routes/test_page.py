"""The chat page at /, tested in a real browser with keyboard input."""

import hashlib
import json
import re
import struct
from importlib import resources

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from ballast.server.routes.chat_page import FILES
from devkit.servers.page_steps import WAIT_MS, ask, chunk, shows
from devkit.servers.process import FAKE, ServerProcess
from tools.page import pictures

OPTIONS = ("--step_s", "0.03", "--max_new_tokens", "400", "--max_batch_size", "4", "--cache_lens", "2048")
PHONE = {"width": 360, "height": 640}


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*OPTIONS, module=FAKE) as process:
        yield process


@pytest.fixture(scope="module")
def built_in_server():
    with ServerProcess("--cache_lens", "4096") as process:
        yield process


def test_a_conversation_by_keyboard_alone(page, server):
    page.goto(server.url)
    expect(page.locator("#model")).to_have_text("alphabet")
    expect(page.locator("#batch-text")).to_have_text("0 of 4")
    page.locator("#max-tokens").evaluate("field => field.value = 12")
    ask(page, "abc")
    reply = page.locator("article.assistant")
    expect(reply.locator(".text")).to_have_text("defghijklmno")
    expect(reply.locator(".figures")).to_contain_text(re.compile(r"^12 tokens · \d+\.\d tokens/s · first after"))
    expect(reply.locator(".figures")).to_contain_text("cut off")
    expect(page.locator("#prompt")).to_be_focused()
    ask(page, "d")
    expect(page.locator("article")).to_have_count(4)
    # The whole conversation was sent: three letters, twelve, and one.
    expect(reply.nth(1).locator(".text")).to_have_text(re.compile("^qrst"))
    page.locator("#new").focus()
    page.keyboard.press("Enter")
    expect(page.locator("article")).to_have_count(0)


def test_the_end_of_a_reply_leaves_the_focus_where_the_user_moved_it(page, server):
    page.goto(server.url)
    page.locator("#max-tokens").evaluate("field => field.value = 30")
    ask(page, "abc")
    expect(page.locator("#batch-text")).to_have_text("1 of 4")
    page.locator("#new").focus()
    expect(page.locator("article.assistant .figures")).to_contain_text("30 tokens")
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#new")).to_be_focused()


def test_the_bars_move_while_it_streams_and_escape_or_the_button_stops(page, server):
    page.goto(server.url)
    for stop in ("Escape", "button"):
        ask(page, "abc")
        expect(page.locator("#batch-text")).to_have_text("1 of 4")
        expect(page.locator("#batch")).to_have_attribute("aria-valuenow", "1")
        expect(page.locator("#kv-text")).not_to_have_text("0 %")
        expect(page.locator("article.assistant .text").last).to_have_text(re.compile("^[a-z]{20,}"))
        if stop == "Escape":
            page.keyboard.press("Escape")
        else:
            page.locator("#stop").click()
        expect(page.locator("#stop")).to_be_hidden()
        expect(page.locator("article.assistant .figures").last).to_contain_text("stopped")
        server.wait_until_empty()
    expect(page.locator("#batch-text")).to_have_text("0 of 4")


@pytest.mark.parametrize(
    "frames",
    [
        [
            chunk(reasoning_content="hmm "),
            ": keep-alive\n\n",
            chunk(reasoning_content="yes"),
            chunk(content="<b>42</b>"),
        ],
        [chunk(content="<think>hmm "), chunk(content="yes</think>\n\n<b>42"), chunk(content="</b>")],
    ],
    ids=["split", "inline"],
)
def test_reasoning_is_folded(page, server, frames):
    """The fake model does not reason, so the stream is simulated, in both forms that servers send."""
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body="".join(frames) + "data: [DONE]\n\n"))
    page.goto(server.url)
    ask(page, "what?")
    reply = page.locator("article.assistant")
    expect(reply.locator("> .text")).to_have_text("<b>42</b>")
    expect(reply.locator("details.reasoning .text")).to_have_text("hmm yes")
    expect(reply.locator("details.reasoning summary")).to_have_text("Thought for 1 s")
    expect(reply.locator("details.reasoning .text")).to_be_hidden()
    reply.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(reply.locator("details.reasoning .text")).to_be_visible()
    ask_again = page.locator("#prompt")
    ask_again.fill("and?")
    ask_again.press("Enter")
    expect(reply).to_have_count(2)
    expect(reply.first.locator("details.reasoning .text")).to_be_visible()


def test_the_page_does_not_scroll_while_the_user_reads_further_up(page, server):
    page.goto(server.url)
    page.set_viewport_size(PHONE)
    page.locator("#prompt").fill("a\n" * 60)
    page.keyboard.press("Enter")
    figures = page.locator("article.assistant .figures")
    expect(figures).to_contain_text("tokens/s")
    page.locator("#talk").evaluate("talk => talk.scrollTop = 7")
    page.keyboard.press("Escape")
    expect(figures).to_contain_text("stopped")
    assert page.locator("#talk").evaluate("talk => talk.scrollTop") == 7


WRITTEN = """# Sums

A **bold** word, `code` & &lt;tags&gt;, <img src=x onerror=alert(1)>, ![picture](http://evil.example/a.png),
[a link](https://example.org/a?b=1), [a trap](javascript:alert(1)) and [another](//evil.example/).

```python
def add(a, b):
    return a + b  # <b>
```

- [x] one
- two
  1. three

| a | b |
|:--|--:|
| 1 | <script>alert(1)</script> |
"""


def test_a_reply_is_drawn_as_markdown_and_never_as_html(page, server):
    shows(page, WRITTEN)
    page.goto(server.url)
    ask(page, "<b>add</b> **please**")
    reply = page.locator("article.assistant > .text")
    expect(reply.locator("h3")).to_have_text("Sums")
    expect(reply.locator("strong")).to_have_text("bold")
    expect(reply.locator("pre")).to_have_text("def add(a, b):\n    return a + b  # <b>")
    expect(reply.locator("pre .hl-keyword").first).to_have_text("def")
    expect(reply.locator("ol li")).to_have_text("three")
    expect(reply.locator("td").last).to_have_text("<script>alert(1)</script>")
    expect(reply).to_contain_text("& <tags>, <img src=x onerror=alert(1)>")
    assert reply.locator("img, script, b").count() == 0
    links = reply.locator("a").evaluate_all("all => all.map((a) => [a.href, a.rel, a.target])")
    outside = ("noopener noreferrer", "_blank")
    assert links == [["http://evil.example/a.png", *outside], ["https://example.org/a?b=1", *outside]]
    expect(page.locator("article.user > .text")).to_have_text("<b>add</b> **please**")


def test_a_streamed_text_is_rendered_like_a_whole_one(page, server):
    page.goto(server.url)
    whole, grown = page.evaluate(
        """async (text) => {
          const { Markdown } = await import("./page/markdown.js");
          const places = [document.createElement("div"), document.createElement("div")];
          new Markdown(places[0]).draw(text);
          const growing = new Markdown(places[1]);
          for (let end = 0; end <= text.length; end += 3) growing.draw(text.slice(0, end));
          growing.draw(text);
          return places.map((place) => place.innerHTML);
        }""",
        WRITTEN + "\nSee [there].\n\n[there]: https://example.org/late\n",
    )
    assert grown == whole
    assert "https://example.org/late" in whole


def test_code_and_replies_are_copied(browser, server):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    shows(page, WRITTEN)
    page.goto(server.url)
    ask(page, "add")
    for place, text in ((".code-head", "def add(a, b):\n    return a + b  # <b>"), (".actions", WRITTEN)):
        button = page.locator(f"article.assistant {place} button").first
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == text
    context.close()


def test_regenerated_replies_and_edited_questions_keep_earlier_versions(page, server):
    shows(page, "one", "two", "three", "four")
    page.goto(server.url)
    ask(page, "first")
    replies = page.locator("article.assistant > .text")
    expect(replies).to_have_text("one")
    page.get_by_role("button", name="Regenerate").click()
    expect(replies).to_have_text("two")
    expect(page.locator("article.assistant .versions")).to_contain_text("2 / 2")
    ask(page, "second")
    expect(replies).to_have_text(["two", "three"])
    page.get_by_role("button", name="Edit").first.click()
    expect(page.locator("article")).to_have_count(0)
    expect(page.locator("#prompt")).to_have_value("first")
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "!")
    assert requested.value.post_data_json["messages"] == [{"role": "user", "content": "first!"}]
    expect(replies).to_have_text("four")
    # Back to the first question, by keyboard; the branch written last is shown.
    page.get_by_role("button", name="Earlier version").focus()
    page.keyboard.press("Enter")
    expect(replies).to_have_text(["two", "three"])
    page.get_by_role("button", name="Earlier version").last.click()
    expect(replies).to_have_text("one")
    expect(page.get_by_role("button", name="Later version").last).to_be_focused()
    page.reload()
    page.locator("#show-chats").click()
    page.locator("#kept .title").click()
    expect(replies).to_have_text("one")
    expect(page.locator(".versions")).to_have_text(["‹1 / 2›", "‹1 / 2›"])


def test_a_cancelled_edit_changes_nothing(page, server):
    shows(page, "one")
    page.goto(server.url)
    ask(page, "first")
    for give_up in ("Escape", "button"):
        page.get_by_role("button", name="Edit").click()
        expect(page.locator("article")).to_have_count(0)
        if give_up == "Escape":
            page.keyboard.press("Escape")
        else:
            page.locator("#cancel-edit").click()
        expect(page.locator("article.assistant > .text")).to_have_text("one")
        expect(page.locator("#prompt")).to_have_value("")
    page.get_by_role("button", name="Edit").click()
    page.locator("#new").click()
    expect(page.locator("#prompt")).to_have_value("")


def test_an_edit_that_cannot_be_sent_stays_open(page, server):
    shows(page, "one", "two")
    page.goto(server.url)
    ask(page, "first")
    replies = page.locator("article.assistant > .text")
    expect(replies).to_have_text("one")
    page.get_by_role("button", name="Edit").click()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, body='{"error": {"message": "full"}}'))
    ask(page, "!")
    expect(page.locator("#status")).to_have_text("full")
    expect(page.locator("#prompt")).to_have_value("first!")
    shows(page, "two")
    page.keyboard.press("Enter")
    expect(replies).to_have_text("two")
    expect(page.locator("article.user .versions")).to_contain_text("2 / 2")


def test_a_message_is_deleted_with_all_later_ones(page, server):
    page.on("dialog", lambda dialog: dialog.accept())
    shows(page, "one", "two")
    page.goto(server.url)
    ask(page, "first")
    expect(page.locator("article.assistant .figures")).to_be_visible()
    page.get_by_role("button", name="Regenerate").click()
    replies = page.locator("article.assistant > .text")
    expect(replies).to_have_text("two")
    page.get_by_role("button", name="Delete").last.click()
    expect(replies).to_have_text("one")
    page.get_by_role("button", name="Delete").first.click()
    expect(page.locator("article")).to_have_count(0)
    page.locator("#show-chats").click()
    expect(page.locator("#none")).to_be_visible()


def test_a_reply_that_cannot_be_regenerated_is_kept(page, server):
    shows(page, "one")
    page.goto(server.url)
    ask(page, "first")
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, body='{"error": {"message": "full"}}'))
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("#status")).to_have_text("full")
    expect(page.locator("article.assistant > .text")).to_have_text("one")


def test_a_reply_that_is_stopped_before_it_begins_stays(page, server):
    shows(page, "one")
    page.goto(server.url)
    ask(page, "first")
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("article.assistant .figures")).to_have_text("waiting…")
    page.locator("#stop").click()
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    expect(page.locator(".versions")).to_have_count(0)
    page.reload()
    page.locator("#show-chats").click()
    page.locator("#kept .title").click()
    expect(page.locator("article.assistant > .text")).to_have_text("one")


def test_conversations_are_kept_in_the_browser(page, server):
    shows(page, "**one**", "two", "three")
    page.goto(server.url)
    ask(page, "about ships")
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    page.locator("#new").click()
    ask(page, "about trains")
    expect(page.locator("article.assistant > .text")).to_have_text("two")
    page.goto(server.url)
    expect(page.locator("article")).to_have_count(0)
    page.locator("#show-chats").click()
    titles = page.locator("#kept .title")
    expect(titles).to_have_text(["about trains", "about ships"])
    page.keyboard.type("SHIP")
    expect(titles).to_have_text(["about ships"])
    titles.click()
    expect(page.locator("article.assistant strong")).to_have_text("one")
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "and boats")
    assert [message["content"] for message in requested.value.post_data_json["messages"]] == [
        "about ships",
        "**one**",
        "and boats",
    ]
    expect(page.locator("article.assistant > .text")).to_have_text(["one", "three"])
    page.locator("#show-chats").click()
    expect(titles).to_have_text(["about ships", "about trains"])
    page.get_by_role("button", name="Delete about trains").click()
    expect(titles).to_have_text(["about ships"])
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.locator("#forget-all").click()
    expect(titles).to_have_text(["about ships"])
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator("#forget-all").click()
    expect(page.locator("#none")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#chats")).to_be_hidden()


def test_a_full_storage_drops_the_oldest_chats_but_never_all(page, server):
    shows(page, "one", "two", "three")
    page.goto(server.url)
    for title in ("first", "second"):
        page.locator("#new").click()
        ask(page, title)
        expect(page.locator("article.assistant .figures")).to_contain_text("first after")
    # First enough storage for two chats, then for less than one.
    page.evaluate("""() => {
      const set = Storage.prototype.setItem;
      window.room = localStorage.getItem("ballast-chats").length + 20;
      Storage.prototype.setItem = function (key, text) {
        if (text.length > window.room) throw new DOMException("full", "QuotaExceededError");
        set.call(this, key, text);
      };
    }""")
    page.locator("#new").click()
    ask(page, "third")
    expect(page.locator("article.assistant .figures")).to_contain_text("first after")
    page.locator("#show-chats").click()
    titles = page.locator("#kept .title")
    expect(titles).to_have_text(["third", "second"])
    huge = {"id": "x", "title": "y" * 2000, "at": 9e15, "messages": []}
    file = json.dumps({"format": "ballast-chats", "chats": [huge]})
    payload = {"name": "chats.json", "mimeType": "application/json", "buffer": file.encode()}
    page.locator("#import-file").set_input_files(payload)
    expect(page.locator("#told")).to_have_text("0 chats imported.")
    expect(titles).to_have_text(["third", "second"])


def test_chats_are_exported_and_imported(page, server, browser, tmp_path):
    shows(page, "one")
    page.goto(server.url)
    page.locator("#system").evaluate("field => field.value = 'Be brief.'")
    ask(page, "about ships")
    expect(page.locator("article.assistant .figures")).to_be_visible()
    page.locator("#show-chats").click()
    with page.expect_download() as saved:
        page.locator("#export").click()
    assert saved.value.suggested_filename.endswith(".json")
    file = tmp_path / "chats.json"
    saved.value.save_as(file)
    other = browser.new_context().new_page()
    other.goto(server.url)
    other.locator("#show-chats").click()
    reported = other.locator("#told")
    # Stored data from other programs can be anything: cyclic messages, texts that are not strings.
    hostile = [{"id": "a", "parent": "b", "role": "user", "content": "x"}, {"id": "b", "parent": "a", "role": "user"}]
    chats = [{"id": "x", "title": "<b>odd</b>", "messages": [*hostile, 7, None], "leaf": "b"}, {"messages": 7}, 7]
    texts = {"[]": "this file holds no exported chats", "{": "this file holds no exported chats"}
    texts[json.dumps({"format": "ballast-chats", "chats": chats})] = "1 chat imported."
    texts[file.read_text()] = "1 chat imported."
    for text, answer in texts.items():
        payload = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
        other.locator("#import-file").set_input_files(payload)
        expect(reported).to_have_text(answer)
    expect(other.locator("#kept .title")).to_have_text(["about ships", "<b>odd</b>"])
    other.get_by_role("button", name="<b>odd</b>").first.click()
    expect(other.locator("article")).to_have_count(0)
    other.locator("#show-chats").click()
    other.get_by_role("button", name="about ships").first.click()
    expect(other.locator("article.assistant > .text")).to_have_text("one")
    assert other.locator("#system").input_value() == "Be brief."
    other.context.close()


FORMULAS = r"""The root $x = \sqrt{2}$, \(a_1 * b * c\), and it costs $5 or $6.

$$
\boxed{\int_0^1 \underline{x}\,dx}
$$

\[ \href{javascript:alert(1)}{x} \] \[ \htmlStyle{color:red}{y} \] $\unknown$
"""


def test_formulas_are_rendered_and_invalid_ones_shown_as_source(page, server):
    shows(page, FORMULAS)
    page.goto(server.url)
    ask(page, "root")
    text = page.locator("article.assistant > .text")
    expect(text.locator(".katex")).to_have_count(5)
    expect(text.locator("math")).to_have_count(5)  # the text for screen readers
    expect(text.locator("div.formula .katex-display")).to_have_count(3)
    for shown in ("it costs $5 or $6.", "\\href", "\\htmlStyle", "$\\unknown$"):
        expect(text).to_contain_text(shown)
    assert text.locator("a").count() == 0
    page.wait_for_function(
        "[...document.fonts].some((font) => font.family.includes('KaTeX_Main') && font.status === 'loaded')"
    )


def test_thinking_is_open_while_it_streams_and_then_folded_with_its_seconds(page, server):
    page.goto(server.url)
    states = page.evaluate(
        """async () => {
          const { Answer } = await import("./page/answer.js");
          const box = document.createElement("article");
          box.append(document.createElement("h2"));
          const answer = new Answer(box);
          let now = 0;
          performance.now = () => now;
          const states = [];
          for (const delta of [{ reasoning_content: "Well, " }, { reasoning_content: "so." }, { content: "Yes." }]) {
            answer.take({ choices: [{ delta }] });
            answer.draw(false);
            const fold = box.querySelector("details");
            const [summary, text] = fold.children;
            states.push([fold.open, summary.textContent, text.textContent]);
            now += 12_000;
          }
          return states;
        }"""
    )
    assert states[:2] == [[True, "Thinking…", "Well,"], [True, "Thinking…", "Well, so."]]
    assert states[2] == [False, "Thought for 24 s", "Well, so."]


CALL = {"id": "call-1", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def test_a_call_is_a_card_and_its_result_is_sent(page, server):
    frames = iter([chunk(content="I look.") + chunk(tool_calls=[{"index": 0, **CALL}]), chunk(content="It rains.")])
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=next(frames) + "data: [DONE]\n\n"))
    page.goto(server.url)
    page.locator("#settings summary").click()
    page.locator("#tools").fill("{")
    page.locator("#prompt").focus()
    ask(page, "weather?")
    expect(page.locator("#tools")).to_be_focused()
    page.locator("#tools").fill('[{"name": "get_weather", "parameters": {"type": "object"}}]')
    page.locator("#prompt").focus()
    with page.expect_request("**/v1/chat/completions") as requested:
        page.keyboard.press("Enter")
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    assert requested.value.post_data_json["tools"] == [tool]
    card = page.locator("article.assistant .card")
    expect(card.locator("h3")).to_have_text("Call of get_weather")
    expect(card.locator("pre")).to_have_text('{\n  "city": "Paris"\n}')
    card.get_by_label("Result of get_weather").fill("rain")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, body="{}"), times=1)
    page.get_by_role("button", name="Send results").click()
    expect(page.locator("#status")).not_to_have_text("")
    expect(card.get_by_label("Result of get_weather")).to_have_value("rain")
    with page.expect_request("**/v1/chat/completions") as requested:
        page.get_by_role("button", name="Send results").click()
    call = {"id": "call-1", "type": "function", "function": CALL["function"]}
    assert requested.value.post_data_json["messages"][1:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "rain"},
    ]
    expect(page.locator("article.assistant > .text")).to_have_text(["I look.", "It rains."])
    expect(card.locator("pre").last).to_have_text("rain")


def test_text_files_go_with_a_message(page, server):
    page.goto(server.url)
    files = [("a.py", b"print('\xc3\xa4')"), ("b.bin", b"\0\1"), ("c.txt", b"abc")]
    for name, content in files:
        page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})
        if name == "b.bin":
            expect(page.locator("#status")).to_have_text("b.bin is no text in UTF-8")
    expect(page.locator("#files li")).to_have_text(["a.py · 10 charactersRemove", "c.txt · 3 charactersRemove"])
    page.get_by_role("button", name="Remove c.txt").click()
    page.locator("#max-tokens").evaluate("field => field.value = 5")
    page.locator("#prompt").focus()
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "what is it?")
    [message] = requested.value.post_data_json["messages"]
    assert [part["type"] for part in message["content"]] == ["file", "text"]
    assert message["content"][0]["file"] == {
        "filename": "a.py",
        "file_data": "data:text/plain,print('%C3%A4')",
    }
    expect(page.locator("article.assistant .figures")).to_contain_text("5 tokens")  # the server accepted it
    expect(page.locator("article.user .files")).to_contain_text("a.py")
    expect(page.locator("#files")).to_be_hidden()


def test_text_files_can_be_dropped_anywhere_on_the_page(page, server):
    page.goto(server.url)
    dropped = page.evaluate_handle("""() => {
        const carried = new DataTransfer();
        carried.items.add(new File(["one"], "a.txt", {type: "text/plain"}));
        carried.items.add(new File(["two!"], "b.py"));
        return carried;
    }""")
    page.locator("#conversation, main").first.dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.locator("#files li")).to_have_text(["a.txt · 3 charactersRemove", "b.py · 4 charactersRemove"])
    assert page.url.rstrip("/") == server.url.rstrip("/"), (
        "the browser must not open the dropped file instead of the page"
    )


def test_settings_are_sent_and_empty_ones_use_server_defaults(page, server):
    shows(page, "one", "two")
    page.goto(server.url)
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "first")
    assert set(requested.value.post_data_json) == {"messages", "stream", "stream_options"}
    expect(page.locator("article.assistant .figures")).to_be_visible()
    page.locator("#settings summary").click()
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Thinking").select_option("off")
    given = {"Temperature": 0.65, "Top p": 0.95, "Top k": 40, "Min p": 0.05, "Repetition penalty": 1.1, "Seed": 7}
    for label, value in given.items():
        page.get_by_label(label, exact=True).fill(str(value))
    page.locator("#prompt").focus()
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "second")
    body = requested.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["thinking"] is False
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    assert [body[name] for name in names] == list(given.values())


def test_the_servers_own_timings_and_the_context_are_shown(page, server):
    page.goto(server.url)
    page.locator("#max-tokens").evaluate("field => field.value = 12")
    expect(page.locator("#context-text")).to_have_text("0 of 2,048")
    ask(page, "abc")
    figures = page.locator("article.assistant .figures")
    expect(figures).to_contain_text(re.compile(r"prompt \d+ tokens.*, \d+ tokens/s"))
    expect(page.locator("#context-text")).to_have_text(re.compile(r"^1[5-9] of 2,048"))
    shown = figures.inner_text()
    page.locator("#new").click()
    expect(page.locator("#context-text")).to_have_text("0 of 2,048")
    page.locator("#show-chats").click()
    page.locator("#kept .title").first.click()
    expect(figures).to_have_text(shown)
    expect(page.locator("#context-text")).to_have_text(re.compile(r"^1[5-9] of 2,048"))


def test_the_input_box_grows_with_its_text_within_the_page(page, server):
    page.goto(server.url)
    heights = []
    for lines in (1, 8, 200):
        page.locator("#prompt").fill("line\n" * lines)
        heights.append(page.locator("#prompt").bounding_box()["height"])
    assert heights[0] + 100 < heights[1] < heights[2] <= page.viewport_size["height"] * 0.4 + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, server, scheme):
    context = browser.new_context(
        color_scheme=scheme, bypass_csp=True
    )  # the test injects axe against the page's policy
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    call = chunk(tool_calls=[{"index": 0, **CALL}])
    body = chunk(reasoning_content="hm") + chunk(content=WRITTEN + FORMULAS) + call + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    page.goto(server.url)
    expect(page.locator("#examples button")).to_have_count(4)
    found = {"empty": violations(page)}
    payload = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"abc"}
    page.locator("#file").set_input_files(payload)
    page.locator("#prompt").focus()
    ask(page, "add these")
    expect(page.locator("article.assistant .actions")).to_be_visible()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("article.assistant .versions")).to_be_visible()
    page.locator("#settings summary").click()
    page.locator("#file").set_input_files(payload)
    page.locator("article.assistant summary").click()
    found["conversation"] = violations(page)
    page.locator("#show-chats").click()
    found["chats"] = violations(page)
    context.close()
    assert found == {"empty": [], "conversation": [], "chats": []}


def violations(page):
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]


def test_the_built_in_model_answers_the_examples_well(page, built_in_server):
    """The examples that a new user clicks first."""
    page.goto(built_in_server.url)
    answers = ("Ballast serves DeepSeek-class", "105", "--port", "apple, fig, pear")
    expect(page.locator("#examples button")).to_have_count(len(answers))
    for index, answer in enumerate(answers):
        page.locator("#examples button").nth(index).click()
        expect(page.locator("article.assistant > .text")).to_contain_text(answer)
        expect(page.locator("article.assistant .actions")).to_be_visible()
        page.locator("#new").click()


def test_the_documentations_pictures_can_be_taken_again(browser, built_in_server, tmp_path):
    pictures.take(browser, built_in_server.url, tmp_path)
    for name, size in pictures.SIZES.items():
        shown = pictures.ROOT / "docs/pictures" / name
        assert [png_size(path) for path in (tmp_path / name, shown)] == [size, size], "run: make pictures"


def png_size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_page_sends_the_key_that_the_server_requires(page, tmp_path):
    (tmp_path / "keys").write_text("the-key\n")
    with ServerProcess(*OPTIONS, "--api_key_file", str(tmp_path / "keys"), "--admin_port", "0", module=FAKE) as server:
        page.goto(server.url)
        page.locator("#max-tokens").evaluate("field => field.value = 3")
        expect(page.locator("#key")).to_be_focused()
        ask(page, "wrong")
        expect(page.locator("#key")).to_be_focused()
        page.locator("#prompt").fill("abc")
        page.keyboard.press("Enter")
        expect(page.locator("#key")).to_be_focused()
        expect(page.locator("#prompt")).to_have_value("abc")
        page.locator("#show-chats").click()  # viewing other chats loses nothing
        page.keyboard.press("Escape")
        page.locator("#key").fill("the-key")
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("article.assistant .text")).to_have_text("def")
        expect(page.locator("#batch-text")).to_have_text("0 of 4")
        # The page polls the server's load every second; it is closed before its server stops.
        page.close()


def test_an_error_is_shown_and_the_question_is_kept(page, server):
    page.goto(server.url)
    page.locator("#prompt").fill("a" * 3000)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("maximum context length is 2048 tokens")
    expect(page.locator("#prompt")).to_have_value("a" * 3000)
    expect(page.locator("article")).to_have_count(0)


POST = """async ([url, type]) => {
  const body = new Blob(['{"prompt": "abc"}'], { type });
  await fetch(url, { method: "POST", mode: "no-cors", body });
}"""


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("evil.example", 421)])
def test_a_page_of_another_host_cannot_use_the_server(browser, server, host, status):
    """The browser sends such a body without a preflight request. The name resolves to this server, as its owner can
    do."""
    tab = browser.new_page()
    num_tokens, num_events = server.metrics()["ballast_prompt_tokens_total"], len(server.events)
    tab.goto(f"http://evil.example:{server.port}/livez")
    for media_type in ("text/plain", ""):
        tab.evaluate(POST, [f"http://{host}:{server.port}/v1/completions", media_type])
    tab.close()

    def statuses():
        return [event["status"] for event in server.events[num_events:] if event.get("method") == "POST"]

    server.wait_for(lambda _: len(statuses()) >= 2, timeout_s=20)
    assert set(statuses()) == {status}
    assert server.metrics()["ballast_prompt_tokens_total"] == num_tokens


def test_a_setting_out_of_range_is_shown_where_it_is_wrong(page, server):
    page.goto(server.url)
    page.locator("#temperature").evaluate("field => field.value = 3")
    ask(page, "abc")
    expect(page.locator("#temperature")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_colour_schemes(page, server, scheme):
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme=scheme)
    page.goto(server.url)
    page.locator("#max-tokens").evaluate("field => field.value = 30")
    ask(page, "a" * 200)
    expect(page.locator("article.assistant .figures")).to_contain_text("30 tokens")
    page.locator("#settings summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for name in ("#send", "#new", "#prompt"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert box["y"] + box["height"] <= PHONE["height"]
    contrast = page.evaluate(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(red, green, blue) < 60) == (scheme == "dark")


CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      v /= 255;
      return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return colour.startsWith("rgba(0, 0, 0, 0") ? back(node.parentElement) : colour;
  };
  const found = {};
  for (const name of ["#model", "#batch-text", "article .text", "article h2", ".figures", "#send", "#new", "summary"]) {
    const node = document.querySelector(name);
    const pair = [light(getComputedStyle(node).color), light(back(node))].sort((a, b) => b - a);
    found[name] = (pair[0] + 0.05) / (pair[1] + 0.05);
  }
  return found;
}"""


def test_the_content_security_policy_blocks_other_origins(server):
    for path, (_, media_type) in FILES.items():
        reply = httpx.get(server.url + path, timeout=60)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == media_type
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        if "/vendor/" not in path:
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", reply.text), (
                "the page must not load from other hosts"
            )
        again = httpx.get(server.url + path, headers={"If-None-Match": reply.headers["etag"]}, timeout=60)
        assert (again.status_code, again.content) == (304, b"")


def test_vendored_files_are_unchanged_and_have_their_licences():
    vendor = resources.files("ballast.server.routes").joinpath("static", "vendor")
    packages = json.loads(vendor.joinpath("packages.json").read_text())
    assert {f"/page/vendor/{name}" for name in packages} == {path for path in FILES if "/vendor/" in path}
    for name, package in packages.items():
        content = vendor.joinpath(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == package["sha256"]
        if name.endswith(".js"):
            assert package["version"] in content.decode()
        assert "Copyright" in vendor.joinpath(package["license_file"]).read_text()
