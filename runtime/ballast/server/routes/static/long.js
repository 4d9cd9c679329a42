// A conversation that is longer than the model's context: which turns to leave out, and which to sum up at a time.

const CHARACTERS = 3; // per token, as long as no reply has told the real number

// A turn is a user's message with all that follows it, up to the next one.
export function turns(messages) {
  const found = [];
  for (const message of messages) {
    if (message.role === "user" || !found.length) found.push([]);
    found.at(-1).push(message);
  }
  return found;
}

// Returns a function that estimates the tokens of some of these messages.
export function sizer(messages) {
  const last = messages.findLastIndex((message) => message.tokens);
  const known = messages.slice(0, last + 1);
  const rate = known.length ? messages[last].tokens / Math.max(1, characters(known)) : 1 / CHARACTERS;
  return (some) => Math.ceil(rate * characters(some));
}

function characters(messages) {
  let sum = 0;
  for (const { content, files = [], calls = [] } of messages) {
    sum += content.length;
    for (const file of files) sum += file.text.length;
    for (const call of calls) sum += call.name.length + call.arguments.length;
  }
  return sum;
}

// Leaves out the oldest turns, at least one, so that about `room` tokens are sent; the last `spared` turns stay. Returns
// whether there was a turn to leave out.
export function dropOldest(conversation, room, spared) {
  const sent = conversation.sent();
  const all = turns(sent);
  const size = sizer(sent);
  const most = all.length - spared; // that can be left out
  if (most < 1) return false;
  let dropped = all.length;
  for (let left = room; dropped > 1; dropped -= 1) {
    left -= size(all[dropped - 1]);
    if (left < 0) break;
  }
  conversation.leaveOutUpTo(all[Math.min(dropped, most) - 1].at(-1));
  return true;
}

// The messages in parts of whole turns, each of about `room` tokens at most.
export function parts(messages, room) {
  const size = sizer(messages);
  const found = [];
  let left = 0;
  for (const turn of turns(messages)) {
    if (!found.length || size(turn) > left) {
      found.push([]);
      left = room;
    }
    left -= size(turn);
    found.at(-1).push(...turn);
  }
  return found;
}
