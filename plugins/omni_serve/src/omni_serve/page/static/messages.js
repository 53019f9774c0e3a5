// The messages of the chat as they are shown.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
}

// Returns an element that shows a piece of media.
export function preview(kind, url, name) {
  if (kind === "image") return element("img", { src: url, alt: name });
  return element(kind, { src: url, controls: true, preload: "metadata", title: name });
}

export class Messages {
  constructor(place) {
    this.place = place;
    this.empty = place.querySelector("#empty");
  }

  clear() {
    this.place.replaceChildren(this.empty);
  }

  add(role, ...children) {
    this.empty.remove();
    const body = element("div", { className: "body" }, ...children);
    const message = element("article", { className: `message ${role}` }, body);
    message.setAttribute("aria-label", role === "user" ? "You" : "Answer");
    this.place.append(message);
    this.scroll(true);
    return message;
  }

  user(text, media = []) {
    const shown = media.map((each) => preview(each.kind, each.url, each.name));
    return this.add("user", ...shown, ...(text ? [element("p", { textContent: text })] : []));
  }

  // Returns an answer with `text`, `note`, `fail`, `end`, and `show`, which brings its end into sight.
  answer() {
    const words = element("p", { className: "words" });
    const note = element("div", { className: "note" });
    const message = this.add("assistant", words, note);
    message.classList.add("running");
    return {
      message,
      text: (piece) => {
        words.append(piece);
        this.scroll();
      },
      note: (text) => {
        note.textContent = text;
        this.scroll();
      },
      show: () => this.scroll(true),
      end: () => message.classList.remove("running"),
      fail: (text) => {
        message.classList.remove("running");
        message.classList.add("failed");
        message.querySelector(".body").append(element("p", { className: "error", textContent: text }));
        this.scroll();
      },
    };
  }

  // Keeps the end in sight, unless the reader has scrolled up.
  scroll(always = false) {
    const { place } = this;
    if (always || place.scrollHeight - place.scrollTop - place.clientHeight < 120) place.scrollTop = place.scrollHeight;
  }
}
