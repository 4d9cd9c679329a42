// The server's load: the bars at the top.

import { at } from "./elements.js";
import { request } from "./server.js";

const POLL_MS = { busy: 500, idle: 5000 };

let timer = 0;
let model = null; // told once
let most = 0; // tokens of a conversation
let used = 0;
let isBusy = false;
let tell = {}; // {refused, named}

export function watch(callbacks) {
  tell = callbacks;
  document.addEventListener("visibilitychange", poll);
  poll();
}

export function busy(is) {
  isBusy = is;
  poll();
}

// Tokens of the longest conversation with its last reply; 0 while the server has not told.
export function contextSize() {
  return most;
}

// How many tokens the shown conversation has.
export function contextUsed(tokens) {
  used = tokens;
  if (most) bar("context", Math.min(used, most), most, `${used.toLocaleString("en")} of ${most.toLocaleString("en")}`);
}

function bar(id, value, whole, text) {
  const meter = at(id);
  meter.setAttribute("aria-valuenow", String(value));
  meter.setAttribute("aria-valuemax", String(whole));
  meter.setAttribute("aria-valuetext", text);
  meter.firstElementChild.style.width = `${Math.min(100, (100 * value) / whole)}%`;
  meter.classList.toggle("full", value >= 0.9 * whole);
  at(`${id}-text`).textContent = text;
}

export async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const response = await request("occupancy");
    if (response.status === 401) tell.refused();
    if (response.ok) show(await response.json());
  } catch {
    at("batch-text").textContent = at("kv-text").textContent = "–";
  }
  clearTimeout(timer);
  timer = setTimeout(poll, isBusy ? POLL_MS.busy : POLL_MS.idle);
}

function show(now) {
  at("model").textContent = now.model;
  document.title = `${now.model} · Ballast`;
  const waiting = now.waiting ? `, ${now.waiting} waiting` : "";
  bar("batch", now.running, now.batch_slots, `${now.running} of ${now.batch_slots}${waiting}`);
  const percent = Math.round((100 * now.kv_used_tokens) / now.kv_capacity_tokens);
  bar("kv", percent, 100, `${percent} %`);
  most = now.max_model_tokens;
  contextUsed(used);
  if (model === now.model) return;
  model = now.model;
  tell.named(model);
}
