// Conversations, kept in this browser alone. What it has no room for is forgotten, the oldest first.

import { Conversation } from "./conversation.js";

const PLACE = "ballast-chats";
const MOST = 200;
const TITLE = 60;

function read() {
  try {
    return usable(JSON.parse(localStorage.getItem(PLACE) ?? "[]"));
  } catch {
    return []; // damaged, or the browser keeps nothing
  }
}

function usable(kept) {
  return Array.isArray(kept) ? kept.filter((chat) => typeof chat?.id === "string" && Array.isArray(chat.messages)) : [];
}

// Returns how many had room. Where not even the latest has, what was kept stays.
function write(chats) {
  for (let most = Math.min(MOST, chats.length); most >= Math.min(1, chats.length); most -= 1) {
    try {
      localStorage.setItem(PLACE, JSON.stringify(chats.slice(0, most)));
      return most;
    } catch {
      // no room: without the oldest
    }
  }
  return 0;
}

// Chats whose title or messages contain `words`, the latest first.
export function chats(words = "") {
  const wanted = words.trim().toLowerCase();
  const has = (text) => String(text).toLowerCase().includes(wanted);
  return read().filter((chat) => has(chat.title) || chat.messages.some((message) => has(message?.content)));
}

// The one with this id; null if it is not kept here.
export function find(id) {
  return read().find((chat) => chat.id === id) ?? null;
}

// Returns whether the conversation is kept now.
export function keep(id, conversation, system) {
  const others = read().filter((chat) => chat.id !== id);
  const { messages, leaf, summary } = conversation;
  const [first] = messages;
  if (!first) {
    write(others);
    return false;
  }
  const title = (first.content || first.files?.[0]?.name || "").replace(/\s+/g, " ").slice(0, TITLE);
  return write([{ id, title, at: Date.now(), messages, leaf, system, summary }, ...others]) > 0;
}

export function forget(id) {
  write(read().filter((chat) => chat.id !== id));
}

export function forgetAll() {
  write([]);
}

export function exported() {
  return JSON.stringify({ format: PLACE, version: 1, chats: read() }, null, 1);
}

// Adds the conversations of an exported file to those that are here, and returns how many had room. One that is here
// under the same id is replaced. Throws Error for a text that is no such file.
export function imported(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    found = null;
  }
  if (found?.format !== PLACE) throw new Error("this file holds no exported chats");
  const added = usable(found.chats).map((chat) => {
    const { messages, leaf, summary } = new Conversation(chat);
    const at = Number.isFinite(chat.at) ? chat.at : 0;
    return { id: chat.id, title: String(chat.title), at, messages, leaf, system: String(chat.system ?? ""), summary };
  });
  const ids = new Set(added.map((chat) => chat.id));
  const all = [...added, ...read().filter((chat) => !ids.has(chat.id))];
  const room = write(all.sort((one, other) => other.at - one.at));
  return all.slice(0, room).filter((chat) => ids.has(chat.id)).length;
}
