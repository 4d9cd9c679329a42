// Messages as the API takes them.

import { withFiles } from "./files.js";

export function sent({ role, content, files, calls, call }) {
  if (role === "tool") return { role, tool_call_id: call, content };
  const message = { role, content: withFiles(content, files) };
  if (calls?.length) {
    message.tool_calls = calls.map(({ id, name, arguments: given }) => ({
      id, type: "function", function: { name, arguments: given },
    }));
  }
  return message;
}

// The system message, as a list of one or none.
export function instructions(system, summary) {
  const said = [system.trim(), ...(summary ? [`Summary of the conversation so far:\n\n${summary.text}`] : [])];
  const content = said.filter(Boolean).join("\n\n");
  return content ? [{ role: "system", content }] : [];
}
