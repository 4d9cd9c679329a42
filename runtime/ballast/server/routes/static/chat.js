// The built-in chat page: one conversation at a time, streamed. Texts reach the page as text, never as markup.

import { addressOf, chatInAddress, goTo, rename, watchAddress } from "./address.js";
import { Answer, unfold } from "./answer.js";
import { showChats } from "./chat_list.js";
import { find, keep } from "./chats.js";
import { take, write } from "./composer.js";
import { Conversation, newId } from "./conversation.js";
import { at, button, copyButton, element, say } from "./elements.js";
import { examples, isBuiltIn } from "./examples.js";
import { chips } from "./files.js";
import { forgetPending, isKeyWanted, wantKey } from "./key.js";
import { Markdown } from "./markdown.js";
import { busy as watchBusily, contextSize, contextUsed, watch } from "./occupancy.js";
import { instructions, sent } from "./sent.js";
import { events, refusal, request } from "./server.js";
import { settings } from "./settings.js";
import { offer, refused as tooLong, settle, watchTooLong } from "./too_long.js";
import { focusSwitcher, switcher } from "./versions.js";

const DRAW_MS = 50;
const HEARD = 1000; // characters of a reply that a screen reader announces
const TOO_LONG = "context_length_exceeded";

let chat = newId();
let conversation = new Conversation();
let editing = null; // the leaf before a question went back to where it is written
let running = null; // AbortController of the reply in progress

// --- what is shown ----------------------------------------------------------------------------------------

function article(role, name) {
  at("empty").hidden = true;
  const box = element("article", [element("h2", [name])], role);
  at("messages").append(box);
  return box;
}

// Draw the conversation again.
function redraw() {
  const path = conversation.path();
  at("messages").replaceChildren();
  at("empty").hidden = path.length > 0;
  if (conversation.summary) summaryOfEarlier(conversation.summary);
  const unsent = path.findLastIndex((message) => message.leftOut);
  path.forEach((message, index) => {
    if (message.role === "user") question(message);
    else if (message.role === "assistant") reply(message, resultsAfter(path, index), index === path.length - 1);
    if (index === unsent) leftOutLine();
  });
  contextUsed(path.findLast((message) => message.tokens)?.tokens ?? 0);
  toEnd();
}

function summaryOfEarlier({ text, of }) {
  const place = element("div", [], "text");
  const link = element("a", ["Open the earlier chat"]);
  link.href = addressOf(of);
  article("summary", "Summary of an earlier chat").append(place, element("p", [link], "text"));
  new Markdown(place).draw(text);
}

function leftOutLine() {
  const all = button("Send all again", () => {
    if (running) return;
    conversation.leaveNothingOut();
    keepShown();
    redraw();
    at("prompt").focus();
  });
  at("messages").append(element("p", ["The model does not see what is above this line.", all], "left-out"));
}

function resultsAfter(path, index) {
  const rest = path.slice(index + 1);
  const end = rest.findIndex((message) => message.role !== "tool");
  return end < 0 ? rest : rest.slice(0, end);
}

function question(message) {
  const box = article("user", "You");
  if (message.files?.length) box.append(element("ul", chips(message.files), "files"));
  box.append(element("div", [message.content], "text"));
  actions(box, message, button("Edit", () => edit(message)));
}

function reply(message, results, isLast, unfolded = false) {
  const box = article("assistant", "Reply");
  if (unfolded) unfold(message.id);
  const waits = isLast && message.calls?.length > 0;
  new Answer(box).drawKept(message, results, waits ? answerCalls : null);
  actions(box, message, button("Regenerate", () => regenerate(message)));
}

// What can be done with a message of the conversation.
function actions(box, message, change) {
  box.dataset.id = message.id;
  const row = element("div", [copyButton(() => message.content), change, button("Delete", () => remove(message))], "actions");
  const versions = conversation.versions(message);
  if (versions.length > 1) row.append(switcher(versions, versions.indexOf(message), choose));
  box.append(row);
}

function isAtEnd() {
  const talk = at("talk");
  return talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
}

function toEnd() {
  at("talk").scrollTop = at("talk").scrollHeight;
}

// Keep what is shown, and name it in the address while it is kept.
function keepShown() {
  rename(keep(chat, conversation, at("system").value) ? chat : null);
}

// --- what is done with messages ---------------------------------------------------------------------------

function choose(message, label) {
  if (running) return;
  stopEditing();
  conversation.choose(message);
  keepShown();
  redraw();
  const box = at("messages").querySelector(`[data-id="${CSS.escape(message.id)}"]`);
  focusSwitcher(box, label);
}

function remove(message) {
  if (running || !confirm("Delete this message and what follows it?")) return;
  stopEditing();
  conversation.remove(message);
  keepShown();
  redraw();
  at("prompt").focus();
}

// Puts a message back into the composer. The edited message becomes another version of it.
function edit(message) {
  if (running) return;
  editing ??= conversation.leaf;
  conversation.leaf = message.parent;
  redraw();
  at("editing").hidden = false;
  write(message.content, message.files);
  at("prompt").focus();
}

function stopEditing() {
  if (editing === null) return;
  conversation.leaf = editing;
  editing = null;
  at("editing").hidden = true;
  write("");
}

function regenerate(message) {
  if (running) return;
  stopEditing();
  const { leaf } = conversation;
  conversation.leaf = message.parent;
  redraw();
  const undo = () => (conversation.leaf = leaf); // nothing came: the reply that was there is shown again
  answer(undo, { retry: () => regenerate(message), spared: 1 });
}

function ask(text, files) {
  const before = { leaf: conversation.leaf, editing };
  editing = null;
  at("editing").hidden = true;
  const asked = conversation.add({ role: "user", content: text, ...(files.length ? { files } : {}) });
  redraw();
  const undo = (refused) => {
    // Nothing was answered: the question goes back to where it can be sent again.
    conversation.remove(asked);
    conversation.leaf = before.leaf;
    editing = before.editing;
    at("editing").hidden = editing === null;
    write(text, files);
    if (refused) wantKey(() => at("ask").requestSubmit());
  };
  answer(undo, { retry: () => at("ask").requestSubmit(), spared: 0 });
}

function answerCalls(results) {
  if (running) return;
  const { leaf } = conversation;
  const added = results.map(([call, content]) => conversation.add({ role: "tool", call, content }));
  redraw();
  const undo = () => {
    conversation.remove(added[0]);
    conversation.leaf = leaf;
  };
  answer(undo, { retry: () => answerCalls(results), spared: 1 });
}

function body() {
  return JSON.stringify({
    messages: [...instructions(at("system").value, conversation.summary), ...conversation.sent().map(sent)],
    stream: true,
    stream_options: { include_usage: true },
    ...settings(),
  });
}

// Have the conversation's last message answered. `undo` is called if nothing came, with whether a key is missing;
// `again` is offered if the conversation is too long.
async function answer(undo, again) {
  say("");
  offer(null);
  const thread = conversation; // another may be opened meanwhile, and change what is written in the settings
  const id = chat;
  const system = at("system").value;
  const coming = new Answer(article("assistant", "Reply"));
  running = new AbortController();
  busy(true);
  let failed = null;
  let code = null;
  let refused = false;
  let stopped = false;
  try {
    coming.draw(false);
    toEnd();
    const response = await request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: body(),
      signal: running.signal,
    });
    if (!response.ok) {
      refused = response.status === 401;
      throw await refusal(response);
    }
    await follow(coming, response);
  } catch (error) {
    stopped = running.signal.aborted;
    ({ code } = error);
    if (!stopped) failed = told(error);
  }
  running = null;
  if (coming.first === null && (failed || stopped)) {
    if (conversation === thread) {
      undo(refused);
      redraw();
    }
  } else {
    const follows = isAtEnd();
    coming.draw(true);
    const said = thread.add(coming.message());
    const isKept = keep(id, thread, system);
    if (conversation === thread) {
      if (isKept) rename(id);
      ended(coming, said, follows);
    }
  }
  // The user may have moved to another control meanwhile.
  const isFree = [null, document.body, at("send"), at("stop")].includes(document.activeElement);
  busy(false);
  if (failed) say(failed);
  if (!refused && isFree) at("prompt").focus();
  if (conversation !== thread) return;
  if (code === TOO_LONG) tooLong(again);
  else settle();
}

function told(error) {
  return error instanceof TypeError ? "the connection was lost" : error.message;
}

// Draws the finished reply in the same place, without scrolling if the user reads further up.
function ended(coming, said, follows) {
  coming.box.remove();
  reply(said, [], true, coming.isUnfolded());
  contextUsed(said.tokens ?? 0);
  if (follows) toEnd();
  at("heard").textContent = `Reply: ${said.content.slice(0, HEARD)}`;
  const isFull = coming.reason === "length" && contextSize() && said.tokens >= contextSize();
  if (isFull) offer({ retry: () => regenerate(said), spared: 1 });
}

async function follow(coming, response) {
  let drawn = 0;
  for await (const event of events(response)) {
    coming.take(event);
    if (performance.now() - drawn < DRAW_MS) continue;
    const follows = isAtEnd();
    coming.draw(false);
    if (follows) toEnd();
    drawn = performance.now();
  }
}

// Do something else that asks the model. Returns its result; null if it fails or is stopped.
async function work(task) {
  say("");
  running = new AbortController();
  const { signal } = running;
  busy(true);
  let result = null;
  try {
    result = await task(signal);
  } catch (error) {
    if (!signal.aborted) say(told(error));
  }
  running = null;
  busy(false);
  return result;
}

// Go on in a new chat, which begins with what was said in this one.
function goOn(text, question, files) {
  const of = chat;
  goTo(null);
  open(newId(), { summary: { text, of } });
  ask(question, files);
}

function busy(is) {
  at("stop").hidden = !is;
  at("send").hidden = is;
  at("messages").setAttribute("aria-busy", String(is));
  watchBusily(is);
}

// Begin or continue a conversation.
function open(id, kept) {
  running?.abort();
  forgetPending();
  settle();
  offer(null);
  stopEditing();
  chat = id;
  conversation = new Conversation(kept);
  redraw();
  say("");
  at("prompt").focus();
}

// The chat that the address names.
function openNamed() {
  const id = chatInAddress();
  if (id === chat) return;
  const kept = id === null ? null : find(id);
  if (kept) at("system").value = kept.system ?? "";
  open(kept?.id ?? newId(), kept ?? {});
  if (id !== null && !kept) say("This chat is not kept in this browser: it was deleted, or it is in another browser.");
}

// --- what people do ---------------------------------------------------------------------------------------

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const written = running ? null : take();
  if (written) ask(written.text, written.files);
});

at("stop").addEventListener("click", () => running?.abort());
at("cancel-edit").addEventListener("click", cancelEdit);
function cancelEdit() {
  stopEditing();
  redraw();
  at("prompt").focus();
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || at("chats").open) return;
  if (running) running.abort();
  else if (!at("editing").hidden) cancelEdit();
});

at("new").addEventListener("click", () => {
  goTo(null);
  open(newId());
});
at("show-chats").addEventListener("click", () => {
  showChats((kept) => {
    goTo(kept.id);
    at("system").value = kept.system ?? "";
    open(kept.id, kept);
  });
});
at("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the chat
  at("prompt").focus();
});
watchAddress(openNamed);
watchTooLong({
  conversation: () => conversation,
  isBusy: () => running !== null,
  changed: () => {
    keepShown();
    redraw();
  },
  work,
  article,
  goOn,
});

watch({
  refused: () => isKeyWanted() || wantKey(),
  named: (model) => {
    const asks = examples(model).map((text) => element("li", [button(text, () => running || ask(text, []), "")]));
    at("examples").replaceChildren(...asks);
    if (isBuiltIn(model)) at("temperature").value ||= "0"; // so small a model errs where it is sampled
  },
});
openNamed();
at("prompt").focus();
