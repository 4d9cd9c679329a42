// A conversation is a tree: each message names its parent, so an edited question or a regenerated reply is a sibling
// of the earlier one. `leaf` is the end of the displayed branch.

const ROLES = new Set(["user", "assistant", "tool"]);

export function newId() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
}

export class Conversation {
  constructor(kept = {}) {
    this.messages = sound(kept.messages);
    const known = this.messages.some((message) => message.id === kept.leaf);
    this.leaf = known ? kept.leaf : (this.messages.at(-1)?.id ?? null);
    this.summary = soundSummary(kept.summary); // {text, of}: what was said in the chat `of`, which this one continues
  }

  find(id) {
    return this.messages.find((message) => message.id === id);
  }

  // The messages of the branch that is shown, the first one first.
  path() {
    const found = [];
    for (let message = this.find(this.leaf); message; message = this.find(message.parent)) found.unshift(message);
    return found;
  }

  // The messages of that branch which the model gets: those behind the last that was left out.
  sent() {
    const path = this.path();
    return path.slice(path.findLastIndex((message) => message.leftOut) + 1);
  }

  leaveOutUpTo(message) {
    message.leftOut = true;
  }

  // Everything is sent again.
  leaveNothingOut() {
    for (const message of this.path()) delete message.leftOut;
  }

  // Adds a message behind the leaf, and makes it the leaf.
  add(message) {
    const added = { ...message, id: newId(), parent: this.leaf };
    this.messages.push(added);
    this.leaf = added.id;
    return added;
  }

  // The versions of a message: its siblings and itself.
  versions(message) {
    return this.messages.filter((other) => other.parent === message.parent && other.role === message.role);
  }

  // Shows the branch of `message` that was written last.
  choose(message) {
    let last = message;
    for (let next = last; next; next = this.messages.findLast((other) => other.parent === last.id)) last = next;
    this.leaf = last.id;
  }

  // Takes away a message and all that follow it. The branch that is shown then ends before it, or is another version's.
  remove(message) {
    const gone = new Set([message.id]);
    for (const other of this.messages) if (gone.has(other.parent)) gone.add(other.id);
    const beside = this.versions(message).findLast((other) => other !== message);
    this.messages = this.messages.filter((other) => !gone.has(other.id));
    if (beside) this.choose(beside);
    else this.leaf = message.parent;
  }
}

// Loads a stored or imported conversation and drops invalid messages: a parent must come before its children, so no
// branch is a cycle. Lists without parents are from an earlier page; each message follows the previous one.
function sound(messages) {
  const found = [];
  const ids = new Set();
  for (const message of Array.isArray(messages) ? messages : []) {
    if (!ROLES.has(message?.role) || typeof message.content !== "string") continue;
    const { id = newId(), parent = found.at(-1)?.id ?? null } = message;
    if (typeof id !== "string" || ids.has(id) || !(parent === null || ids.has(parent))) continue;
    ids.add(id);
    found.push({ ...texts(message), id, parent });
  }
  return found;
}

function soundSummary(summary) {
  return typeof summary?.text === "string" && typeof summary.of === "string" ? { text: summary.text, of: summary.of } : null;
}

function texts(message) {
  const made = { role: message.role, content: message.content };
  if (message.leftOut === true) made.leftOut = true;
  for (const name of ["reasoning", "figures", "call"]) {
    if (typeof message[name] === "string") made[name] = message[name];
  }
  for (const name of ["thought", "tokens"]) if (Number.isFinite(message[name])) made[name] = message[name];
  const allTexts = (part, ...names) => names.every((name) => typeof part?.[name] === "string");
  if (Array.isArray(message.calls)) {
    made.calls = message.calls.filter((call) => allTexts(call, "id", "name", "arguments"));
  }
  if (Array.isArray(message.files)) made.files = message.files.filter((file) => allTexts(file, "name", "text"));
  return made;
}
