// Text files that go along with the next message.

import { at, button, element } from "./elements.js";

const LARGEST = 1_000_000; // bytes of one file
const MOST = 20;

let attached = []; // {name, text}

export function setFiles(files = []) {
  attached = [...files];
  draw();
}

// Returns and clears the attached files.
export function takeFiles() {
  const taken = attached;
  setFiles();
  return taken;
}

// Reads `list` of the browser's files; says by `tell` which it leaves out.
export async function attach(list, tell) {
  tell("");
  for (const file of list) {
    try {
      if (attached.length >= MOST) throw new Error(`at most ${MOST} files go with a message`);
      if (file.size > LARGEST) throw new Error(`${file.name} is larger than ${LARGEST / 1e6} MB`);
      setFiles([...attached, { name: file.name, text: await text(file) }]);
    } catch (error) {
      tell(error.message);
    }
  }
}

async function text(file) {
  const bytes = await file.arrayBuffer();
  let found;
  try {
    found = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    found = "\0";
  }
  if (found.includes("\0")) throw new Error(`${file.name} is no text in UTF-8`);
  return found;
}

// As the API takes a message with files.
export function withFiles(content, files) {
  if (!files?.length) return content;
  const parts = files.map(({ name, text: inner }) => ({
    type: "file",
    file: { filename: name, file_data: `data:text/plain,${encodeURIComponent(inner)}` },
  }));
  return content ? [...parts, { type: "text", text: content }] : parts;
}

export function chips(files, removed) {
  return files.map((file, index) => {
    const chip = element("li", [element("span", [`${file.name} · ${size(file.text.length)}`])]);
    if (removed) {
      const remove = button("Remove", () => removed(index));
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      chip.append(remove);
    }
    return chip;
  });
}

function size(characters) {
  return characters < 1000 ? `${characters} characters` : `${Math.round(characters / 1000)} k characters`;
}

function draw() {
  const removed = (index) => setFiles(attached.filter((_, other) => other !== index));
  at("files").replaceChildren(...chips(attached, removed));
  at("files").hidden = attached.length === 0;
}
