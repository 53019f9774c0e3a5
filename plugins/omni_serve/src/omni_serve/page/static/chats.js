// The list of conversations: opens, renames, exports and removes them.

import { $, announce, download, element, fileName, iconButton } from "./dom.js";
import { exported, plain } from "./store.js";

export class Chats {
  // current: returns the conversation that is shown. open: shows one, or a new one.
  constructor({ store, current, open }) {
    Object.assign(this, { store, current, open });
    const act = { rename: () => this.rename(), md: () => this.export("md"), json: () => this.export("json"), remove: () => this.remove() };
    for (const button of $("chat-menu").querySelectorAll("button")) {
      button.addEventListener("click", () => {
        $("chat-menu").hidePopover();
        act[button.dataset.act]();
      });
    }
    $("export-all").addEventListener("click", async () => {
      const all = await Promise.all(this.store.chats.map(plain));
      download(new Blob([JSON.stringify(all, null, 1)], { type: "application/json" }), "conversations.json");
    });
  }

  show() {
    const { chats, kept } = this.store;
    $("chats").replaceChildren(...chats.map((chat) => this.row(chat)));
    $("export-all").disabled = !chats.length;
    $("kept").textContent = kept ? "Kept in this browser only." : "This browser keeps nothing: they end with the tab.";
  }

  row(chat) {
    const title = element("button", { type: "button", className: "quiet title", dir: "auto", textContent: chat.title, title: chat.title });
    if (chat === this.current()) title.setAttribute("aria-current", "true");
    title.addEventListener("click", () => this.open(chat));
    const more = iconButton("more", `More about ${chat.title}`, (button) => this.menu(chat, button));
    more.setAttribute("aria-haspopup", "true");
    return element("li", {}, title, more);
  }

  menu(chat, button) {
    this.chosen = chat;
    const menu = $("chat-menu");
    menu.showPopover();
    const { left, bottom } = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.min(bottom + 4, innerHeight - menu.offsetHeight - 8)}px`;
    menu.querySelector("button").focus();
  }

  rename() {
    const chat = this.chosen;
    const row = $("chats").children[this.store.chats.indexOf(chat)];
    const field = element("input", { value: chat.title, maxLength: 100, "aria-label": "Name of the conversation" });
    let ended = false;
    const end = (keep) => {
      if (ended) return;
      ended = true;
      if (keep && field.value.trim()) chat.title = field.value.trim();
      this.store.write(chat);
      this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => queueMicrotask(() => end(true))); // it may blur because the list is drawn anew
    row.replaceChildren(field);
    field.select();
  }

  async export(form) {
    download(await exported(this.chosen, form), fileName(this.chosen.title, form));
  }

  async remove() {
    const chat = this.chosen;
    const shown = chat === this.current();
    await this.store.remove(chat);
    if (shown) this.open(null);
    else this.show();
    announce(`${chat.title} is deleted`);
  }
}
