// The turns of a conversation as they are shown, each with what can be done with it.

import { $, announce, copyText, done, download, dress, element, fileName, iconButton, notice } from "./dom.js";
import { Markdown } from "./markdown.js";

// Returns an element that shows a piece of media.
export function preview(kind, blob, name) {
  const src = URL.createObjectURL(blob);
  if (kind === "image") return element("img", { src, alt: name });
  return element(kind, { src, controls: true, preload: "metadata", title: name, "aria-label": name });
}

function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

export class Messages {
  // on: retry(turn), edit(turn), change(turn), aloud(turn), which returns the speech of a text, and silence(turn), true if it was being spoken.
  constructor(place, on) {
    this.place = place;
    this.on = on;
    this.empty = $("empty");
    this.follows = true; // what is added at the end
    let top = 0;
    place.addEventListener("scroll", () => {
      if (this.below < 120) this.follows = true;
      else if (place.scrollTop < top) this.follows = false;
      top = place.scrollTop;
    });
    this.sound = new Audio();
    for (const each of ["ended", "pause"]) this.sound.addEventListener(each, () => this.played());
  }

  clear() {
    this.sound.pause();
    for (const each of this.place.querySelectorAll("[src^='blob:']")) URL.revokeObjectURL(each.src);
    this.place.replaceChildren(this.empty);
  }

  // Removes a turn's message and all after it.
  cut(turn) {
    const all = [...this.place.querySelectorAll(".message")];
    const first = all.findIndex((each) => each.turn === turn);
    if (first >= 0) for (const each of all.slice(first)) each.remove();
    if (!this.place.querySelector(".message")) this.clear();
  }

  add(turn, label, ...children) {
    this.empty.remove();
    const body = element("div", { className: "body" }, ...children);
    const message = element("article", { className: `message ${turn.role}`, "aria-label": label }, body);
    message.turn = turn;
    this.place.append(message);
    this.scroll(true);
    return message;
  }

  // Shows what the user said; returns `heard`, which writes down words as they come, and `end`.
  user(turn) {
    const shown = ({ kind, blob, name }) => preview(kind, blob, name);
    const media = turn.spoken && turn.text ? [] : (turn.media ?? []).map(shown);
    const words = element("p", { className: "said", dir: "auto", textContent: turn.text });
    const guess = element("span", { className: "guess" });
    const message = this.add(turn, "You", ...media, words);
    const end = () => {
      message.classList.remove("running");
      guess.remove();
      words.textContent = turn.text;
      words.hidden = !turn.text;
      if (turn.spoken && !turn.text && !message.querySelector("audio")) words.before(...turn.media.map(shown));
      message.querySelector(".toolbar")?.remove();
      const tools = [iconButton("edit", "Edit", () => this.on.edit(turn))];
      if (turn.text) tools.unshift(this.copying(() => turn.text));
      if (turn.spoken && turn.text && turn.media.length) tools.unshift(iconButton("play", "Play", (button) => this.play(turn, button)));
      message.append(element("div", { className: "toolbar" }, ...tools));
    };
    return {
      message,
      end,
      hear: (tentative = "") => {
        message.classList.add("running");
        words.hidden = false;
        words.replaceChildren(turn.text, guess);
        guess.textContent = tentative;
        this.scroll();
      },
    };
  }

  copying(text) {
    return iconButton("copy", "Copy", async (button) => {
      await copyText(text());
      done(button, "copy", "Copy");
    });
  }

  // Shows an answer; returns what fills it. `end` shows what can be done with it.
  answer(turn) {
    const words = element("div", { className: "words" });
    const note = element("div", { className: "note" });
    const figure = element("figure", { hidden: true });
    const message = this.add(turn, "Answer", words, figure, note);
    const markdown = new Markdown(words, () => this.scroll());
    let thoughts = null;
    const view = {
      message,
      figure,
      run: () => message.classList.add("running"),
      text: (piece) => {
        turn.text += piece;
        markdown.add(piece);
      },
      think: (piece) => {
        if (!thoughts) {
          thoughts = element("p", { dir: "auto" });
          words.before(element("details", { className: "thoughts" }, element("summary", { textContent: "Thoughts" }), thoughts));
        }
        turn.thoughts = (turn.thoughts ?? "") + piece;
        thoughts.append(piece);
      },
      note: (text) => {
        turn.note = text;
        note.textContent = text;
        this.scroll();
      },
      picture: (blob, alt, isPreview) => {
        const image = element("img", { className: "picture", src: URL.createObjectURL(blob), alt });
        URL.revokeObjectURL(figure.querySelector("img")?.src);
        figure.replaceChildren(image);
        figure.hidden = false;
        figure.classList.toggle("preview", isPreview);
        return image.decode().then(() => this.scroll());
      },
      fail: (text) => {
        turn.failed = text;
        message.classList.add("failed");
        message.querySelector(".body").append(element("p", { className: "error", role: "alert", textContent: text }));
        this.scroll();
      },
      end: () => {
        message.classList.remove("running");
        markdown.show();
        if (turn.segments) words.replaceChildren(this.timed(turn));
        if (turn.speech && !turn.text) words.replaceChildren(preview("audio", turn.speech, "The speech"));
        message.querySelector(".toolbar")?.remove();
        message.append(this.toolbar(turn, view));
        this.scroll();
      },
    };
    return view;
  }

  // Shows a turn that was kept.
  kept(turn) {
    if (turn.role === "user") return this.user(turn).end();
    const { text, thoughts, note, failed, picture } = turn;
    turn.text = "";
    turn.thoughts = "";
    const view = this.answer(turn);
    if (thoughts) view.think(thoughts);
    view.text(text);
    if (note) view.note(note);
    if (picture) view.picture(picture, "The picture", false);
    if (failed) view.fail(failed);
    view.end();
  }

  toolbar(turn, { message }) {
    const tools = [];
    if (turn.text && (turn.speech || this.on.aloud)) tools.push(iconButton("play", "Play", (button) => this.play(turn, button)));
    if (turn.text) tools.push(this.copying(() => turn.text));
    if (turn.text || turn.speech || turn.picture) tools.push(iconButton("download", "Download", () => this.save(turn)));
    if (turn.segments) tools.push(this.named("Subtitles", "Download as SRT", () => download(new Blob([subtitles(turn.segments)]), fileName(turn.text, "srt"))));
    tools.push(iconButton("retry", "Try again", () => this.on.retry(turn)));
    if (turn.picture && this.on.change) tools.push(this.named("Edit", "Attach this picture, to say what is to be changed", () => this.on.change(turn)));
    if (turn.failed) dress(tools.at(-1), "retry", "Try again").append("Try again");
    message.classList.toggle("spoken", Boolean(turn.speech));
    return element("div", { className: "toolbar" }, ...tools);
  }

  named(textContent, title, act) {
    const button = element("button", { type: "button", className: "quiet", textContent, title });
    button.addEventListener("click", act);
    return button;
  }

  save(turn) {
    const name = turn.text || "answer";
    if (turn.picture) download(turn.picture, fileName(name, turn.picture.type.split("/")[1]));
    else if (turn.speech) download(turn.speech, fileName(name, "wav"));
    else download(new Blob([turn.text], { type: "text/markdown" }), fileName(name, "md"));
  }

  async play(turn, button) {
    const same = this.sound.button === button && !this.sound.paused;
    this.sound.pause();
    if (this.on.silence(turn) || same) return;
    let sound = turn.spoken ? turn.media[0].blob : turn.speech;
    try {
      button.disabled = true;
      sound ??= await this.on.aloud(turn);
    } catch (error) {
      return notice(error.message);
    } finally {
      button.disabled = false;
    }
    URL.revokeObjectURL(this.sound.src);
    this.sound.src = URL.createObjectURL(sound);
    this.sound.button = button;
    dress(button, "stop", "Stop playing");
    await this.sound.play().catch((error) => notice(`It cannot be played here: ${error.message}`));
  }

  played() {
    if (this.sound.button) dress(this.sound.button, "play", "Play");
  }

  // A transcript with the times of its parts, which play the recording from there.
  timed({ segments, recording }) {
    const rows = segments.map(({ start, text, speaker }) => {
      const at = element("button", { type: "button", className: "quiet time", textContent: clock(start), title: "Play from here" });
      at.addEventListener("click", () => {
        this.sound.pause();
        this.sound.button = null;
        if (this.sound.of !== recording) this.sound.src = URL.createObjectURL(recording);
        this.sound.of = recording;
        this.sound.currentTime = start;
        this.sound.play();
      });
      return element("li", {}, at, element("span", {}, speaker === undefined ? "" : element("strong", { textContent: `${speaker}: ` }), text.trim()));
    });
    return element("ol", { className: "timed" }, ...rows);
  }

  // Pixels out of sight below.
  get below() {
    const { scrollHeight, scrollTop, clientHeight } = this.place;
    return scrollHeight - scrollTop - clientHeight;
  }

  // Keeps the end in sight, however much comes at once, unless the reader has scrolled up.
  scroll(always = false) {
    this.follows ||= always;
    if (this.follows) this.place.scrollTop = this.place.scrollHeight;
  }
}

function subtitles(segments) {
  const at = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 23).replace(".", ",");
  return segments.map(({ start, end, text }, index) => `${index + 1}\n${at(start)} --> ${at(end)}\n${text.trim()}\n`).join("\n");
}

// Tells those who do not see the page what was answered.
export function tell(turn) {
  announce(turn.failed || turn.text || (turn.picture ? "The picture is there." : ""));
}
