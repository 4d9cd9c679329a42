// The built-in chat page: one conversation at a time, streamed. Texts reach the page as text, never as markup.
// Paths are relative, so that the page also works under a proxy's prefix.

import { chats, forget, forgetAll, keep } from "./chats.js";
import { copyButton, Markdown } from "./markdown.js";

const at = (id) => document.getElementById(id);
const KEY = "ballast-api-key";
const POLL_MS = { busy: 500, idle: 5000 };

let messages = []; // {role, content} and, of replies, {reasoning, thought}: seconds of thinking
let chat = newId();
let running = null; // AbortController of the reply in progress
let pending = null; // what to send once there is a key

// --- requests ---------------------------------------------------------------------------------------------

function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

// Each event of a stream, parsed; comments and the end mark are left out.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ") && frame !== "data: [DONE]") yield JSON.parse(frame.slice(6));
    }
  }
}

// --- the conversation -------------------------------------------------------------------------------------

function newId() {
  return `${Date.now()}-${Math.random().toString(36).slice(2)}`;
}

function article(role, name) {
  at("empty")?.remove();
  const box = document.createElement("article");
  box.className = role;
  const head = document.createElement("h2");
  head.textContent = name;
  box.append(head);
  at("talk").append(box);
  return box;
}

function button(name, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "small";
  made.textContent = name;
  made.addEventListener("click", act);
  return made;
}

// What can be done with a message of the conversation.
function actions(box, message) {
  const row = document.createElement("div");
  row.className = "actions";
  const { content } = message;
  row.append(copyButton(() => content));
  if (message.role === "user") row.append(button("Edit", () => edit(message)));
  else row.append(button("Regenerate", () => regenerate(message)));
  box.append(row);
}

function question(message) {
  const box = article("user", "You");
  show(box, "text", message.content);
  actions(box, message);
  return box;
}

// Draw the conversation anew.
function redraw() {
  at("talk").replaceChildren();
  for (const message of messages) {
    if (message.role === "user") question(message);
    else new Answer().showKept(message);
  }
  at("talk").scrollTop = at("talk").scrollHeight;
}

// The text goes back to where it is written, and what followed it leaves the page. Until the next reply it is kept.
function edit(message) {
  if (running) return;
  messages = messages.slice(0, messages.indexOf(message));
  redraw();
  at("prompt").value = message.content;
  at("prompt").focus();
}

function regenerate(message) {
  if (running) return;
  const before = messages;
  const id = chat;
  messages = messages.slice(0, messages.indexOf(message));
  redraw();
  answer(() => {
    if (chat !== id) return; // "New chat" has begun another meanwhile
    messages = before; // nothing came: the reply that was there is shown again
    redraw();
  });
}

function show(box, className, text, tag = "div") {
  let place = box.querySelector(`:scope > .${className}`);
  if (!place) {
    place = document.createElement(tag);
    place.className = className;
    box.append(place);
  }
  if (place.textContent !== text) place.textContent = text;
  return place;
}

class Answer {
  constructor() {
    this.box = article("assistant", "Reply");
    this.reasoning = "";
    this.content = "";
    this.thought = null; // seconds of thinking, once it is over
    this.pieces = 0;
    this.tokens = null;
    this.reason = null;
    this.began = performance.now();
    this.first = null;
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.tokens = event.usage.completion_tokens;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const reasoning = choice.delta.reasoning_content ?? choice.delta.reasoning;
    const { content } = choice.delta;
    if (!reasoning && !content) return;
    this.first ??= performance.now();
    this.pieces += 1;
    this.reasoning += reasoning ?? "";
    this.content += content ?? "";
  }

  // A server that does not split thoughts off leaves them at the front of the text, between marks.
  parts() {
    const inline = /^\s*<think>([^]*?)(?:<\/think>\s*([^]*))?$/.exec(this.content);
    return inline ? [this.reasoning + inline[1], inline[2] ?? ""] : [this.reasoning, this.content];
  }

  draw(ended) {
    const talk = at("talk");
    const atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
    const [reasoning, text] = this.parts();
    if (reasoning.trim()) {
      const isOver = ended || text.trim() !== "";
      if (isOver) this.thought ??= ((this.last ?? performance.now()) - this.first) / 1000;
      this.drawReasoning(reasoning.trim(), isOver);
    }
    this.drawText(text);
    const figures = show(this.box, "figures", this.figures(ended), "p");
    this.box.append(figures); // always last
    if (atEnd) talk.scrollTop = talk.scrollHeight;
  }

  drawText(text) {
    this.markdown ??= new Markdown(show(this.box, "text", "")); // below the reasoning
    this.markdown.draw(text);
  }

  showKept(message) {
    const { content, reasoning, thought } = message;
    this.thought = thought;
    if (reasoning) this.drawReasoning(reasoning, true);
    this.drawText(content);
    actions(this.box, message);
  }

  // Open while the model thinks, and then folded; whoever opens or closes it has it so.
  drawReasoning(reasoning, isOver) {
    let fold = this.box.querySelector("details.reasoning");
    if (!fold) {
      fold = document.createElement("details");
      fold.className = "reasoning";
      const summary = document.createElement("summary");
      fold.append(summary);
      fold.open = !isOver;
      this.box.querySelector("h2").after(fold);
    }
    const summary = fold.querySelector("summary");
    summary.textContent = isOver ? thoughtFor(this.thought) : "Thinking…";
    if (isOver && !this.folded) fold.open = false;
    this.folded ||= isOver;
    show(fold, "text", reasoning);
  }

  figures(ended) {
    if (this.first === null) return ended ? "no reply" : "waiting…";
    const tokens = this.tokens ?? this.pieces;
    const seconds = ((ended ? this.last : performance.now()) - this.first) / 1000;
    const words = [`${tokens} tokens`];
    if (tokens > 1 && seconds > 0) words.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    words.push(`first after ${((this.first - this.began) / 1000).toFixed(2)} s`);
    if (ended && this.reason === "length") words.push("cut off at the most tokens allowed");
    if (ended && this.reason === null) words.push("stopped");
    return words.join(" · ");
  }
}

function thoughtFor(seconds) {
  return Number.isFinite(seconds) ? `Thought for ${Math.max(1, Math.round(seconds))} s` : "Thought";
}

function body() {
  const system = at("system").value.trim();
  const asked = {
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...messages.map(({ role, content }) => ({ role, content })),
    ],
    stream: true,
    stream_options: { include_usage: true },
  };
  if (at("temperature").value) asked.temperature = Number(at("temperature").value);
  if (at("max-tokens").value) asked.max_tokens = Number(at("max-tokens").value);
  return JSON.stringify(asked);
}

function ask(text) {
  const asked = { role: "user", content: text };
  messages.push(asked);
  const box = question(asked);
  const thread = messages;
  const id = chat;
  answer((wantsKey) => {
    thread.pop();
    if (chat !== id) return; // another conversation was opened meanwhile
    // Nothing was answered: the question goes back to where it can be sent again.
    box.remove();
    if (wantsKey) wantKey(text);
    else at("prompt").value = text;
  });
}

// Have the conversation's last message answered. `undo` is called if nothing came, with whether a key is missing.
async function answer(undo) {
  say("");
  const thread = messages; // "New chat" may begin another meanwhile
  const id = chat;
  const system = at("system").value; // opening another conversation changes it
  const reply = new Answer();
  running = new AbortController();
  busy(true);
  let failed = null;
  let refused = false;
  let stopped = false;
  try {
    reply.draw(false);
    at("talk").scrollTop = at("talk").scrollHeight;
    const response = await request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: body(),
      signal: running.signal,
    });
    if (!response.ok) {
      refused = response.status === 401;
      throw new Error(await problem(response));
    }
    let drawn = 0;
    for await (const event of events(response)) {
      reply.take(event);
      reply.last = performance.now();
      if (reply.last - drawn > 50) {
        reply.draw(false);
        drawn = reply.last;
      }
    }
  } catch (error) {
    stopped = running.signal.aborted;
    if (!stopped) failed = error instanceof TypeError ? "the connection was lost" : error.message;
  }
  reply.last ??= performance.now();
  running = null;
  if (reply.first === null && (failed || stopped)) {
    reply.box.remove();
    undo(refused);
  } else {
    reply.draw(true);
    const [reasoning, content] = reply.parts();
    const said = { role: "assistant", content, reasoning: reasoning.trim(), thought: reply.thought };
    thread.push(said);
    actions(reply.box, said);
    keep(id, thread, system);
  }
  busy(false);
  if (failed) say(failed);
  if (!refused) at("prompt").focus();
}

function busy(is) {
  at("stop").hidden = !is;
  at("send").hidden = is;
  at("talk").setAttribute("aria-busy", String(is));
  poll();
}

function say(text) {
  at("status").textContent = text;
}

function wantKey(text) {
  pending = text;
  sessionStorage.removeItem(KEY);
  at("key-form").hidden = false;
  at("key").focus();
}

// --- what the server is doing -----------------------------------------------------------------------------

function bar(id, value, most, text) {
  const meter = at(id);
  meter.setAttribute("aria-valuenow", String(value));
  meter.setAttribute("aria-valuemax", String(most));
  meter.setAttribute("aria-valuetext", text);
  meter.firstElementChild.style.width = `${Math.min(100, (100 * value) / most)}%`;
  at(`${id}-text`).textContent = text;
}

let timer = 0;
async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const response = await request("occupancy");
    if (response.status === 401 && at("key-form").hidden) wantKey(pending);
    if (response.ok) {
      const now = await response.json();
      at("model").textContent = now.model;
      document.title = `${now.model} · Ballast`;
      const waiting = now.waiting ? `, ${now.waiting} waiting` : "";
      bar("batch", now.running, now.batch_slots, `${now.running} of ${now.batch_slots}${waiting}`);
      const percent = Math.round((100 * now.kv_used_tokens) / now.kv_capacity_tokens);
      bar("kv", percent, 100, `${percent} %`);
    }
  } catch {
    at("batch-text").textContent = at("kv-text").textContent = "–";
  }
  clearTimeout(timer);
  timer = setTimeout(poll, running ? POLL_MS.busy : POLL_MS.idle);
}

// --- what people do ---------------------------------------------------------------------------------------

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("prompt").value.trim();
  if (!text || running) return;
  at("prompt").value = "";
  ask(text);
});

at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value.trim());
  at("key").value = "";
  at("key-form").hidden = true;
  say("");
  at("prompt").focus();
  poll();
  const text = pending;
  pending = null;
  if (text) ask(text);
});

// A setting that is wrong must be seen before it can be put right.
at("settings").addEventListener("invalid", () => (at("settings").open = true), true);

at("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("chats").open) running?.abort();
});
document.addEventListener("visibilitychange", poll);

// Begin or go on with a conversation.
function open(id, thread) {
  running?.abort();
  chat = id;
  messages = thread;
  redraw();
  say("");
  at("prompt").focus();
}

at("new").addEventListener("click", () => open(newId(), []));

// --- kept conversations -----------------------------------------------------------------------------------

function list() {
  const rows = chats(at("search").value).map((kept) => {
    const row = document.createElement("li");
    const go = button(String(kept.title), () => {
      at("chats").close();
      at("system").value = kept.system ?? "";
      open(kept.id, kept.messages);
    });
    go.className = "title";
    const remove = button("Delete", () => {
      forget(kept.id);
      list();
    });
    remove.setAttribute("aria-label", `Delete ${kept.title}`);
    row.append(go, remove);
    return row;
  });
  at("kept").replaceChildren(...rows);
  at("none").hidden = rows.length > 0;
}

at("show-chats").addEventListener("click", () => {
  at("search").value = "";
  list();
  at("chats").showModal();
});
at("search").addEventListener("input", list);
at("close-chats").addEventListener("click", () => at("chats").close());
at("forget-all").addEventListener("click", () => {
  forgetAll();
  list();
});

at("prompt").focus();
poll();
