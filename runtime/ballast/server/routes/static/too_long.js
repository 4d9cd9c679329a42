// Options for a conversation that is longer than the model's context: drop its oldest turns, or continue in a new chat
// that begins with a summary.

import { Answer } from "./answer.js";
import { write } from "./composer.js";
import { at } from "./elements.js";
import { setFiles, takeFiles } from "./files.js";
import { dropOldest, sizer } from "./long.js";
import { contextSize } from "./occupancy.js";
import { summarise } from "./summary.js";

const USUAL_CONTEXT = 4096; // tokens, while the server has not told

let page = {}; // functions of the page
let offered = null; // {retry, spared}: what to do once there is room, and how many of the last turns that needs
let room = null; // tokens of the turns that were kept the last time; null: no turn is being left out

export function watchTooLong(functions) {
  page = functions;
}

export function offer(what) {
  offered = what;
  at("too-long").hidden = what === null;
}

// Called when a question is answered, or fails for another reason.
export function settle() {
  room = null;
}

// The server has refused a conversation for its length. Once old turns are left out, more of them are, until the rest
// fits or there is none to leave out.
export function refused(again) {
  if (room === null) {
    offer(again);
    return;
  }
  offered = again;
  room /= 2;
  drop();
}

function drop() {
  const { retry, spared } = offered;
  if (!dropOldest(page.conversation(), room, spared)) {
    room = null;
    return;
  }
  page.changed();
  retry();
}

at("drop-oldest").addEventListener("click", () => {
  if (page.isBusy()) return;
  const question = [{ content: at("prompt").value }];
  room = Math.max(0, context() / 2 - sizer(page.conversation().sent())(question));
  drop();
});

at("sum-up").addEventListener("click", async () => {
  if (page.isBusy()) return;
  const again = offered;
  const thread = page.conversation();
  const { content, files, before } = unanswered(thread.sent());
  offer(null);
  const text = await page.work((signal) => {
    const asked = { system: at("system").value, before: thread.summary, context: context(), signal, coming };
    return summarise(before, asked);
  });
  summaries.forEach((box) => box.remove());
  if (page.conversation() !== thread) return;
  if (text === null) {
    setFiles(files);
    offer(again);
    return;
  }
  write("");
  page.goOn(text, content, files);
});

const summaries = new Set(); // boxes in which they are written

function coming() {
  const box = page.article("summary", "Summary");
  summaries.add(box);
  return new Answer(box);
}

// The question that has no room: what is written, else the last one that was asked; and the messages before it.
function unanswered(sent) {
  const content = at("prompt").value.trim();
  const files = takeFiles();
  if (content || files.length) return { content, files, before: sent };
  const last = sent.findLastIndex((message) => message.role === "user");
  return { content: sent[last].content, files: sent[last].files ?? [], before: sent.slice(0, last) };
}

function context() {
  return contextSize() || USUAL_CONTEXT;
}
