// The dialog with the conversations that this browser keeps.

import { chats, exported, forget, forgetAll, imported } from "./chats.js";
import { at, button, element } from "./elements.js";

let opened = () => {};

// Shows them; `open` is called with the one that is chosen.
export function showChats(open) {
  opened = open;
  at("search").value = "";
  at("told").textContent = "";
  list();
  at("chats").showModal();
}

function list() {
  const rows = chats(at("search").value).map((kept) => {
    const go = button(String(kept.title), () => {
      at("chats").close();
      opened(kept);
    }, "title");
    const remove = button("Delete", () => {
      forget(kept.id);
      list();
    });
    remove.setAttribute("aria-label", `Delete ${kept.title}`);
    return element("li", [go, remove]);
  });
  at("kept").replaceChildren(...rows);
  at("none").hidden = rows.length > 0;
}

function download(text, name) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

at("search").addEventListener("input", list);
at("close-chats").addEventListener("click", () => at("chats").close());
at("forget-all").addEventListener("click", () => {
  if (!confirm("Delete every chat that this browser keeps?")) return;
  forgetAll();
  list();
});
at("export").addEventListener("click", () => {
  download(exported(), `ballast-chats-${new Date().toISOString().slice(0, 10)}.json`);
});
at("import").addEventListener("click", () => at("import-file").click());
at("import-file").addEventListener("change", async () => {
  const [file] = at("import-file").files;
  if (!file) return;
  try {
    const count = imported(await file.text());
    at("told").textContent = `${count} ${count === 1 ? "chat" : "chats"} imported.`;
  } catch (error) {
    at("told").textContent = error.message;
  }
  at("import-file").value = "";
  list();
});
