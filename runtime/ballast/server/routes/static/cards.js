// Tool calls as cards. The page runs no tool: the user enters the result of the call.

import { button, element, scrolling } from "./elements.js";
import { highlighted } from "./markdown.js";

const written = new Map(); // results that the user has begun to enter, by the call's id

export class CallCards {
  constructor(place) {
    this.place = place;
    this.drawn = "";
  }

  draw(calls, results, answered) {
    const state = JSON.stringify([calls, results]);
    if (state === this.drawn) return;
    this.drawn = state;
    const fields = [];
    const cards = calls.map((call) => card(call, results?.find((result) => result.call === call.id), answered, fields));
    if (fields.length) {
      cards.push(button("Send results", () => answered(calls.map((call, n) => [call.id, fields[n].value])), "primary"));
    }
    this.place.replaceChildren(...cards);
  }
}

function card(call, result, answered, fields) {
  const head = element("h3", [`Call of ${call.name}`]);
  const given = element("pre", [element("code", highlighted(indented(call.arguments), "json"))]);
  const parts = [head, scrolling(given, "Arguments")];
  if (result) parts.push(element("h4", ["Result"]), scrolling(element("pre", [result.content]), "Result"));
  else if (answered) parts.push(...field(call, fields));
  return element("section", parts, "card");
}

function field(call, fields) {
  const input = element("textarea");
  input.rows = 2;
  input.id = `result-${call.id}`;
  input.value = written.get(call.id) ?? "";
  input.addEventListener("input", () => written.set(call.id, input.value));
  const label = element("label", [`Result of ${call.name}`]);
  label.htmlFor = input.id;
  fields.push(input);
  return [label, input];
}

// While they come, and if the model wrote no JSON, as they are written.
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
