"""The chat page's URL identifies the shown chat."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from devkit.servers.page_steps import ask, shows
from devkit.servers.process import FAKE, ServerProcess

GONE = "This chat is not kept in this browser: it was deleted, or it is in another browser."


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--max_new_tokens", "400", "--cache_lens", "2048", module=FAKE) as process:
        yield process


def fragment(page):
    return urlsplit(page.url).fragment


@pytest.fixture
def two_chats(page, server):
    """The URLs of two chats, one about ships and one about trains; the latter is shown."""
    shows(page, "one", "two")
    page.goto(server.url)
    assert fragment(page) == ""
    ask(page, "ships")
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    page.wait_for_url("**/#chat=*")
    ships = page.url
    page.locator("#new").click()
    assert fragment(page) == ""
    ask(page, "trains")
    expect(page.locator("article.assistant > .text")).to_have_text("two")
    page.wait_for_url("**/#chat=*")
    assert page.url != ships
    return ships, page.url


def test_a_reload_shows_the_same_chat(page, two_chats):
    page.reload()
    expect(page.locator("article > .text")).to_have_text(["trains", "two"])
    assert page.url == two_chats[1]
    shows(page, "three")
    with page.expect_request("**/v1/chat/completions") as requested:
        ask(page, "more")
    assert [each["content"] for each in requested.value.post_data_json["messages"]] == ["trains", "two", "more"]
    expect(page.locator("article.assistant > .text")).to_have_text(["two", "three"])
    assert page.url == two_chats[1]


def test_back_and_forward_go_from_chat_to_chat(page, two_chats):
    texts = page.locator("article > .text")
    page.go_back()
    expect(texts).to_have_text(["ships", "one"])
    assert page.url == two_chats[0]
    page.go_forward()
    expect(texts).to_have_text(["trains", "two"])
    page.locator("#show-chats").click()
    page.get_by_role("button", name="ships", exact=True).click()
    expect(texts).to_have_text(["ships", "one"])
    page.locator("#new").click()
    expect(texts).to_have_count(0)
    page.go_back()
    expect(texts).to_have_text(["ships", "one"])
    page.go_back()
    expect(texts).to_have_text(["trains", "two"])


def test_each_chat_has_its_own_system_message(page, server):
    shows(page, "one", "two")
    page.goto(server.url)
    page.locator("#system").evaluate("field => field.value = 'Be brief.'")
    ask(page, "ships")
    expect(page.locator("article.assistant > .text")).to_have_text("one")
    page.locator("#new").click()
    page.locator("#system").evaluate("field => field.value = 'Be kind.'")
    page.locator("#prompt").focus()
    ask(page, "trains")
    expect(page.locator("article.assistant > .text")).to_have_text("two")
    page.go_back()
    expect(page.locator("#system")).to_have_value("Be brief.")
    page.reload()
    expect(page.locator("#system")).to_have_value("Be brief.")


def test_a_link_opens_its_chat_in_another_tab(page, two_chats):
    other = page.context.new_page()
    other.goto(two_chats[0])
    expect(other.locator("article > .text")).to_have_text(["ships", "one"])


def test_a_link_to_a_deleted_chat_shows_a_message(page, two_chats):
    page.locator("#show-chats").click()
    page.get_by_role("button", name="Delete ships").click()
    page.locator("#close-chats").click()
    page.go_back()
    expect(page.locator("#status")).to_have_text(GONE)
    expect(page.locator("article")).to_have_count(0)
    page.goto("about:blank")
    page.goto(two_chats[0])
    expect(page.locator("#status")).to_have_text(GONE)
    # A new question there starts another chat.
    shows(page, "three")
    page.locator("#prompt").focus()
    ask(page, "boats")
    expect(page.locator("article.assistant > .text")).to_have_text("three")
    expect(page.locator("#status")).to_have_text("")
    page.wait_for_url(lambda url: url not in two_chats)
    page.reload()
    expect(page.locator("article > .text")).to_have_text(["boats", "three"])


def test_a_chat_whose_messages_are_all_deleted_has_no_address(page, two_chats):
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").first.click()
    expect(page.locator("article")).to_have_count(0)
    assert fragment(page) == ""


def test_any_fragment_is_safe(page, server):
    for odd in ("#chat=%3Cimg%20src=x%20onerror=alert(1)%3E", "#chat=", "#chat=%", "#chat=__proto__"):
        page.goto("about:blank")
        page.goto(f"{server.url}/{odd}")
        expect(page.locator("#status")).to_have_text(GONE)
    page.goto("about:blank")
    page.goto(f"{server.url}/#other")
    expect(page.locator("#model")).to_have_text("alphabet")
    expect(page.locator("#status")).to_have_text("")


def test_the_address_is_never_sent_to_the_server(page, two_chats):
    requested = []
    page.on("request", lambda request: requested.append((request.url, request.headers)))
    page.reload()
    expect(page.locator("article > .text")).to_have_text(["trains", "two"])
    chat = two_chats[1].partition("=")[2]
    paths = [urlsplit(url) for url, _ in requested]
    assert paths
    assert all(chat not in path.path + path.query for path in paths)
    assert all(chat not in str(headers) for _, headers in requested)


def test_the_link_past_the_header_keeps_the_address(page, two_chats):
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#prompt")).to_be_focused()
    assert page.url == two_chats[1]


def test_going_back_during_a_reply_keeps_the_received_text(page):
    with ServerProcess("--step_s", "0.05", "--max_new_tokens", "400", "--cache_lens", "2048", module=FAKE) as slow:
        page.goto(slow.url)
        page.locator("#max-tokens").evaluate("field => field.value = 3")
        ask(page, "ships")
        expect(page.locator("article.assistant .figures")).to_contain_text("3 tokens")
        page.wait_for_url("**/#chat=*")
        ships = page.url
        page.locator("#new").click()
        page.locator("#max-tokens").evaluate("field => field.value = 400")
        ask(page, "abc")
        expect(page.locator("article.assistant > .text")).to_contain_text("def")
        page.go_back()
        expect(page.locator("article.user > .text")).to_have_text("ships")
        slow.wait_until_empty()
        assert page.url == ships
        page.locator("#show-chats").click()
        expect(page.locator("#kept .title")).to_have_text(["abc", "ships"])
