"""The chat page at /, used in a real browser as a person uses it: with the keyboard."""

import json
import re
import shutil

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from ballast.server.routes.chat_page import FILES
from support.servers.process import FAKE, ServerProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--step_s", "0.03", "--max_new_tokens", "400", "--max_batch_size", "4", "--cache_lens", "2048")
WAIT_MS = 30_000
PHONE = {"width": 360, "height": 640}


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=WAIT_MS)  # it does not follow a page's own
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail("no Chromium for the tests of the chat page; on Debian and Ubuntu: apt install chromium")
    with sync_playwright() as playwright:
        # Inside a container, and as root, Chromium has no sandbox of its own; it opens nothing but the page here.
        yield (
            started := playwright.chromium.launch(
                executable_path=path,
                args=["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP evil.example 127.0.0.1"],
            )
        )
        started.close()


@pytest.fixture(scope="module")
def server():
    with ServerProcess(*OPTIONS, module=FAKE) as process:
        yield process


@pytest.fixture
def page(browser):
    """A tab that fails the test if the page logs an error, violates its policy or contacts another host."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    faults = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    # Chromium also logs every answer with 4xx; the page shows those.
    tab.on("console", lambda line: faults.append(line.text) if _is_fault(line) else None)
    tab.on("request", lambda asked: faults.append(asked.url) if "//127.0.0.1:" not in asked.url else None)
    yield tab
    context.close()
    assert faults == []


def _is_fault(line):
    return line.type == "error" and not line.text.startswith("Failed to load resource: the server responded")


def ask(page, text):
    page.keyboard.type(text)
    page.keyboard.press("Enter")


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


def chunk(**delta):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + "\n\n"


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
    """The fake model does not reason, so the stream is faked here, in both forms that servers send."""
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body="".join(frames) + "data: [DONE]\n\n"))
    page.goto(server.url)
    ask(page, "what?")
    reply = page.locator("article.assistant")
    expect(reply.locator("> .text")).to_have_text("<b>42</b>")
    expect(reply.locator("details.reasoning .text")).to_have_text("hmm yes")
    expect(reply.locator("details.reasoning .text")).to_be_hidden()
    reply.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(reply.locator("details.reasoning .text")).to_be_visible()


def test_a_server_that_wants_a_key_is_given_one(page, tmp_path):
    (tmp_path / "keys").write_text("the-key\n")
    with ServerProcess(*OPTIONS, "--api_key_file", str(tmp_path / "keys"), "--admin_port", "0", module=FAKE) as server:
        page.goto(server.url)
        expect(page.locator("#key")).to_be_focused()
        ask(page, "wrong")
        expect(page.locator("#key")).to_be_focused()
        ask(page, "the-key")
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("#batch-text")).to_have_text("0 of 4")
        page.locator("#max-tokens").evaluate("field => field.value = 3")
        ask(page, "abc")
        expect(page.locator("article.assistant .text")).to_have_text("def")
        # The page asks for the server's load every second: it ends before its server does.
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
def test_a_page_of_another_name_makes_the_server_do_nothing(browser, server, host, status):
    """The browser sends such a body without asking the server before. The name was moved here, as its owner can."""
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


def test_the_files_allow_nothing_from_elsewhere(server):
    for path, (_, media_type) in FILES.items():
        reply = httpx.get(server.url + path, timeout=60)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == media_type
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", reply.text), "nothing may be loaded from elsewhere"
        again = httpx.get(server.url + path, headers={"If-None-Match": reply.headers["etag"]}, timeout=60)
        assert (again.status_code, again.content) == (304, b"")
