// Has the model sum up a conversation, part after part where it is longer than the context.

import { parts } from "./long.js";
import { instructions, sent } from "./sent.js";
import { events, refusal, request } from "./server.js";

const TASK =
  "Summarise the conversation so far, so that it can be continued from the summary alone: what was asked and answered, " +
  "and every fact, name, number and decision that matters later. Write nothing but the summary.";
const SHARE = 8; // of the context, for the summary
const MOST = 1024;

// Returns the text. `coming` makes the Answer that shows the summary of a part while it is written.
export async function summarise(messages, { system, before, context, signal, coming }) {
  const length = Math.min(MOST, Math.ceil(context / SHARE));
  let summary = before;
  for (const part of parts(messages, context / 2)) {
    const response = await request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        messages: [...instructions(system, summary), ...part.map(sent), { role: "user", content: TASK }],
        stream: true,
        max_tokens: length,
        thinking: false,
        truncate_prompt_tokens: -1, // a turn that is longer than the context is summed up from its end
      }),
      signal,
    });
    if (!response.ok) throw await refusal(response);
    const answer = coming();
    for await (const event of events(response)) {
      answer.take(event);
      answer.draw(false);
    }
    const text = answer.message().content.trim();
    if (!text) throw new Error("the model wrote no summary");
    summary = { text };
  }
  return summary.text;
}
