// Where a question is written: its text, files that are chosen, dropped or pasted, and recordings.

import { $, dress, element, iconButton, notice } from "./dom.js";
import { preview } from "./messages.js";
import { meter, Microphone, wav } from "./microphone.js";

const MEDIA = ["image", "audio", "video"];
const WORDS = { image: "pictures", audio: "sound", video: "video" };

export function listed(words) {
  return words.length < 2 ? (words[0] ?? "") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

export class Composer {
  attached = [];
  recording = null;
  takes = [];

  // changed: called when what can be done with it may be another.
  constructor(changed) {
    this.changed = changed;
    this.level = meter($("level"));
    $("text").addEventListener("input", () => this.grow());
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
      await this.attach($("file").files);
      $("file").value = "";
    });
    $("record").addEventListener("click", () => this.record());
    document.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.attach(event.clipboardData.files);
    });
    let over = 0;
    const dragged = (event, by) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      over = by === null ? 0 : over + by;
      $("drop").hidden = !over;
    };
    document.addEventListener("dragenter", (event) => dragged(event, 1));
    document.addEventListener("dragleave", (event) => dragged(event, -1));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      dragged(event, null);
      event.preventDefault();
      this.attach(event.dataTransfer.files);
    });
  }

  // Shows the kinds of files that a pipeline takes.
  offer(inputs) {
    this.takes = MEDIA.filter((each) => inputs.includes(each));
    $("attach").hidden = !this.takes.length;
    $("file").accept = this.takes.map((each) => `${each}/*`).join(",");
    $("record").hidden = !this.takes.includes("audio");
    this.kinds = listed(this.takes.map((each) => WORDS[each]));
    $("drop").firstElementChild.textContent = this.kinds ? `Drop ${this.kinds} here` : "This pipeline takes no files";
    dress($("attach"), "plus", `Attach ${this.kinds}`);
  }

  get text() {
    return $("text").value.trim();
  }

  // Takes a question: its text and files.
  set({ text = "", media = [] } = {}) {
    $("text").value = text;
    this.attached = [...media];
    this.show();
    this.grow();
  }

  grow() {
    $("text").style.height = "auto";
    $("text").style.height = `${Math.min($("text").scrollHeight, 200)}px`;
    this.changed();
  }

  async attach(files) {
    for (const blob of files) {
      const kind = this.takes.find((each) => blob.type.startsWith(`${each}/`));
      const name = blob.name || "file";
      if (kind) this.attached = [...this.attached, { kind, name, blob }];
      else notice(this.kinds ? `${name}: this pipeline takes ${this.kinds}, no other files.` : `${name}: this pipeline takes no files.`);
    }
    this.show();
    $("text").focus();
  }

  show() {
    for (const each of $("attachments").querySelectorAll("[src]")) URL.revokeObjectURL(each.src);
    const shown = this.attached.map((each) => {
      const remove = iconButton("close", `Remove ${each.name}`, () => {
        this.attached = this.attached.filter((other) => other !== each);
        this.show();
      });
      return element("div", { className: "attachment" }, preview(each.kind, each.blob, each.name), remove);
    });
    $("attachments").replaceChildren(...shown);
    this.changed();
  }

  async record() {
    if (this.recording) return this.endRecording(true);
    const pieces = [];
    const microphone = new Microphone((piece) => {
      pieces.push(piece);
      this.level(piece);
    });
    this.recording = { microphone, pieces };
    this.showRecording();
    try {
      await microphone.open();
    } catch (error) {
      this.endRecording(false);
      notice(`The microphone cannot be used: ${error.message}`);
    }
  }

  async endRecording(keep) {
    if (!this.recording) return;
    const { microphone, pieces } = this.recording;
    this.recording = null;
    this.showRecording();
    await microphone.close();
    if (keep && pieces.length) await this.attach([new File([wav(pieces)], "recording.wav", { type: "audio/wav" })]);
  }

  showRecording() {
    const on = Boolean(this.recording);
    dress($("record"), on ? "stop" : "mic", on ? "End the recording" : "Record", on);
    $("level").hidden = !on;
    this.changed();
  }
}
