// Request parameters other than messages. A form field whose `name` is a request field is sent if it is filled in;
// an empty field uses the server's default.

import { at } from "./elements.js";

const SWITCH = { on: true, off: false };

export function settings() {
  const asked = {};
  for (const field of at("settings").querySelectorAll("input[name]")) {
    if (field.value !== "") asked[field.name] = Number(field.value);
  }
  const thinking = SWITCH[at("thinking").value];
  if (thinking !== undefined) asked.thinking = thinking;
  const tools = toolList(at("tools").value);
  if (tools.length) asked.tools = tools;
  return asked;
}

// A list of tools as OpenAI's API takes it, or of bare functions. Throws Error for anything else.
function toolList(text) {
  if (!text.trim()) return [];
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`this is no JSON: ${error.message}`);
  }
  const tools = (Array.isArray(found) ? found : [found]).map((tool) =>
    typeof tool?.name === "string" ? { type: "function", function: tool } : tool,
  );
  if (!tools.every((tool) => typeof tool?.function?.name === "string")) throw new Error("each tool needs a name");
  return tools;
}

at("tools").addEventListener("input", () => {
  let wrong = "";
  try {
    toolList(at("tools").value);
  } catch (error) {
    wrong = error.message;
  }
  at("tools").setCustomValidity(wrong);
});

// A setting that is wrong must be seen before it can be put right.
at("settings").addEventListener("invalid", () => (at("settings").open = true), true);
