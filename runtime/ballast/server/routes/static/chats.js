// Conversations, kept in this browser alone. What it has no room for is forgotten, the oldest first.

const PLACE = "ballast-chats";
const MOST = 200;
const TITLE = 60;

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(kept) ? kept.filter((chat) => Array.isArray(chat?.messages)) : [];
  } catch {
    return []; // damaged, or the browser keeps nothing
  }
}

function write(chats) {
  for (let most = Math.min(MOST, chats.length); most >= 0; most = most > 1 ? Math.floor(most / 2) : most - 1) {
    try {
      localStorage.setItem(PLACE, JSON.stringify(chats.slice(0, most)));
      return;
    } catch {
      // no room: with half of them
    }
  }
}

// Those whose title or messages have `words`, the latest first.
export function chats(words = "") {
  const wanted = words.trim().toLowerCase();
  const has = (text) => String(text).toLowerCase().includes(wanted);
  return read().filter((chat) => has(chat.title) || chat.messages.some((message) => has(message.content)));
}

export function keep(id, messages, system) {
  const others = read().filter((chat) => chat.id !== id);
  const [first] = messages;
  if (!first) return write(others);
  const title = first.content.replace(/\s+/g, " ").slice(0, TITLE);
  write([{ id, title, at: Date.now(), messages, system }, ...others]);
}

export function forget(id) {
  write(read().filter((chat) => chat.id !== id));
}

export function forgetAll() {
  write([]);
}
