// The form that asks for an API key.

import { at, say } from "./elements.js";
import { poll } from "./occupancy.js";
import { useKey } from "./server.js";

let pending = null; // what to do once there is a key

export function isKeyWanted() {
  return !at("key-form").hidden;
}

export function wantKey(then = pending) {
  pending = then;
  useKey(null);
  at("key-form").hidden = false;
  at("key").focus();
}

// Do nothing more once there is a key.
export function forgetPending() {
  pending = null;
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key").value.trim());
  at("key").value = "";
  at("key-form").hidden = true;
  say("");
  at("prompt").focus();
  poll();
  const then = pending;
  forgetPending();
  then?.();
});
