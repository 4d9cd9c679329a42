// Makers of the page's nodes. Texts become text nodes; nothing is read as HTML.

export const at = (id) => document.getElementById(id);

// The line of what happened, which screen readers read out.
export function say(text) {
  at("status").textContent = text;
}

export function element(tag, children = [], className = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function button(name, act, className = "small") {
  const made = element("button", [name], className);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// A box that scrolls by itself must be reachable by the keyboard.
export function scrolling(inner, name) {
  const box = element("div", [inner], "scrolling");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", name);
  return box;
}

export function copyButton(text) {
  const made = button("Copy", async () => {
    made.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (made.textContent = "Copy"), 2000);
  });
  return made;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have a clipboard for pages of this machine and of HTTPS alone; this older way works elsewhere too.
    const field = element("textarea", [text], "hidden");
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
