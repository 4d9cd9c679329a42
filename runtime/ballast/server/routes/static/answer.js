// A reply: what its stream has brought so far, and how that looks.

import { CallCards } from "./cards.js";
import { element } from "./elements.js";
import { Markdown } from "./markdown.js";

const unfolded = new Set(); // ids of messages whose reasoning the user has opened

export function unfold(id) {
  unfolded.add(id);
}

export class Answer {
  constructor(box) {
    this.box = box;
    this.reasoning = "";
    this.content = "";
    this.calls = []; // {id, name, arguments}
    this.thought = null; // seconds of thinking, once it is over
    this.pieces = 0;
    this.usage = null;
    this.timings = null;
    this.reason = null;
    this.began = performance.now();
    this.first = null;
    this.last = null;
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    this.usage = event.usage ?? this.usage;
    this.timings = event.timings ?? this.timings;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const { content, reasoning_content, reasoning = reasoning_content, tool_calls } = choice.delta;
    if (!reasoning && !content && !tool_calls?.length) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
    this.reasoning += reasoning ?? "";
    this.content += content ?? "";
    for (const piece of tool_calls ?? []) this.takeCall(piece);
  }

  takeCall(piece) {
    const call = (this.calls[piece.index ?? 0] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name ||= piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }

  // A server that does not split thoughts off leaves them at the front of the text, between marks.
  parts() {
    const inline = /^\s*<think>([^]*?)(?:<\/think>\s*([^]*))?$/.exec(this.content);
    return inline ? [this.reasoning + inline[1], inline[2] ?? ""] : [this.reasoning, this.content];
  }

  // As it is kept in the conversation.
  message() {
    const [reasoning, content] = this.parts();
    const { prompt_tokens = 0, completion_tokens = 0 } = this.usage ?? {};
    const tokens = prompt_tokens + completion_tokens || undefined;
    const calls = this.calls.filter(Boolean);
    const figures = this.figures(true);
    return {
      role: "assistant", content, reasoning: reasoning.trim(), thought: this.thought, tokens, figures,
      ...(calls.length ? { calls } : {}),
    };
  }

  draw(ended) {
    const [reasoning, text] = this.parts();
    if (reasoning.trim()) {
      const isOver = ended || text.trim() !== "" || this.calls.length > 0;
      if (isOver) this.thought ??= ((this.last ?? performance.now()) - this.first) / 1000;
      this.drawReasoning(reasoning.trim(), isOver);
    }
    this.drawText(text);
    this.drawCalls(this.calls.filter(Boolean));
    this.drawFigures(this.figures(ended));
  }

  // `results` are the tool messages that follow; `answered` is called with the text for each call, once all are there.
  drawKept(message, results, answered) {
    this.thought = message.thought;
    if (message.reasoning) this.drawKeptReasoning(message);
    this.drawText(message.content);
    this.drawCalls(message.calls ?? [], results, answered);
    if (message.figures) this.drawFigures(message.figures);
  }

  drawText(text) {
    if (!this.markdown) {
      const place = element("div", [], "text");
      this.box.append(place);
      this.markdown = new Markdown(place);
    }
    this.markdown.draw(text);
  }

  drawCalls(calls, results, answered) {
    if (!calls.length) return;
    if (!this.cards) {
      const place = element("div", [], "calls");
      this.box.append(place);
      this.cards = new CallCards(place);
    }
    this.cards.draw(calls, results, answered);
  }

  drawFigures(text) {
    this.foot ??= element("p", [], "figures");
    if (this.foot.textContent !== text) this.foot.textContent = text;
    if (this.box.lastChild !== this.foot) this.box.append(this.foot); // always last
  }

  // Open while the model thinks, then folded, unless the user has opened or closed it.
  drawReasoning(reasoning, isOver) {
    if (!this.fold) {
      const [summary, text] = [element("summary"), element("div", [], "text")];
      this.fold = { box: element("details", [summary, text], "reasoning"), summary, text };
      this.fold.box.open = !isOver;
      this.box.querySelector("h2").after(this.fold.box);
    }
    const { box, summary, text } = this.fold;
    summary.textContent = isOver ? thoughtFor(this.thought) : "Thinking…";
    if (isOver && !this.folded) box.open = false;
    this.folded ||= isOver;
    grow(text, reasoning);
  }

  drawKeptReasoning({ id, reasoning }) {
    this.drawReasoning(reasoning, true);
    const { box } = this.fold;
    box.open = unfolded.has(id);
    box.addEventListener("toggle", () => (box.open ? unfolded.add(id) : unfolded.delete(id)));
  }

  isUnfolded() {
    return this.fold?.box.open ?? false;
  }

  figures(ended) {
    if (this.first === null) return ended ? "no reply" : "waiting…";
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const words = [`${tokens} tokens`];
    const rate = this.timings?.predicted_per_second || this.measured(tokens);
    if (rate) words.push(`${rate.toFixed(1)} tokens/s`);
    words.push(`first after ${((this.first - this.began) / 1000).toFixed(2)} s`);
    if (this.timings) words.push(prompt(this.timings));
    if (ended && this.reason === "length") words.push("cut off at the most tokens allowed");
    if (ended && this.reason === null) words.push("stopped");
    return words.join(" · ");
  }

  // Tokens a second as they arrive here, until the server has said how fast it was.
  measured(tokens) {
    const seconds = (this.last - this.first) / 1000;
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
  }
}

function prompt({ prompt_n: computed = 0, cache_n: cached = 0, prompt_per_second: rate = 0 }) {
  const known = cached ? `, ${cached} of it cached` : "";
  return `prompt ${computed + cached} tokens${known}${rate ? `, ${rate.toFixed(0)} tokens/s` : ""}`;
}

function thoughtFor(seconds) {
  return Number.isFinite(seconds) ? `Thought for ${Math.max(1, Math.round(seconds))} s` : "Thought";
}

// A text that mostly grows is added to, so that a selection in it stays.
function grow(place, text) {
  const shown = place.firstChild?.data ?? "";
  if (place.firstChild && text.startsWith(shown)) place.firstChild.appendData(text.slice(shown.length));
  else place.textContent = text;
}
