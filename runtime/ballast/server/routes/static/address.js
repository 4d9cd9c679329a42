// Which chat the page's address names. It stands behind the "#", which a browser never sends to a server.

const NAME = "chat";

export function chatInAddress() {
  return new URLSearchParams(location.hash.slice(1)).get(NAME);
}

export function addressOf(id) {
  return `${location.pathname}${location.search}${id === null ? "" : `#${new URLSearchParams({ [NAME]: id })}`}`;
}

// Name another chat, or none, as a step that Back undoes.
export function goTo(id) {
  if (chatInAddress() !== id) history.pushState(null, "", addressOf(id));
}

// Name the chat that is shown already.
export function rename(id) {
  if (chatInAddress() !== id) history.replaceState(null, "", addressOf(id));
}

// `changed` is called after Back, Forward, and a link to another chat.
export function watchAddress(changed) {
  addEventListener("popstate", changed);
}
