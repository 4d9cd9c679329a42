// The composer: the message box and the attached files.

import { at, say } from "./elements.js";
import { attach, setFiles, takeFiles } from "./files.js";

// Have this text and these files written.
export function write(text, files) {
  at("prompt").value = text;
  grow();
  setFiles(files);
}

// Returns and clears the message; null if it is empty.
export function take() {
  const text = at("prompt").value.trim();
  if (!text && at("files").hidden) return null;
  const files = takeFiles();
  write("");
  return { text, files };
}

// The box grows with its text; where the style sheet cannot say so, by its height.
function grow() {
  const field = at("prompt");
  if (CSS.supports("field-sizing", "content")) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
at("prompt").addEventListener("input", grow);

at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});

at("attach").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", async () => {
  await attach(at("file").files, say);
  at("file").value = "";
  at("prompt").focus();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  attach(event.dataTransfer.files, say);
});
