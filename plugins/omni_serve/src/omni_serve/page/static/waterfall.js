// Shows the last requests as bars in time: the wait, text, speech, and when the speech was heard.

import { duration } from "./graph.js";

const KEPT = 8;

export class Waterfall {
  constructor(place) {
    this.place = place;
    this.requests = [];
  }

  // Returns a record; its times are set with `mark`.
  begin(title) {
    const request = { title, sent: performance.now(), marks: {} };
    this.requests = [request, ...this.requests].slice(0, KEPT);
    this.draw();
    return request;
  }

  // Keeps when something happened for the first time, and when for the last.
  mark(request, what) {
    const at = (performance.now() - request.sent) / 1000;
    const mark = (request.marks[what] ||= { first: at, last: at });
    mark.last = at;
    if (mark.first === at || what === "end") this.draw();
  }

  draw() {
    const span = Math.max(0.5, ...this.requests.flatMap(({ marks }) => Object.values(marks).map((mark) => mark.last)));
    this.place.replaceChildren(...this.requests.map((request) => this.row(request, span)), this.legend());
  }

  row({ title, marks, failed }, span) {
    const row = document.createElement("div");
    row.className = "request";
    const facts = [];
    if (marks.text) facts.push(`text ${duration(marks.text.first)}`);
    if (marks.audio) facts.push(`speech ${duration(marks.audio.first)}`);
    if (marks.end) facts.push(`${failed || "total"} ${duration(marks.end.last)}`);
    const head = document.createElement("div");
    const name = document.createElement("span");
    name.className = "title";
    name.textContent = title;
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = facts.join(" · ") || "waiting";
    head.append(name, note);
    const bars = document.createElement("div");
    bars.className = "bars";
    const first = Math.min(marks.text?.first ?? Infinity, marks.audio?.first ?? Infinity, marks.end?.last ?? Infinity);
    const parts = { wait: Number.isFinite(first) ? { first: 0, last: first } : null, text: marks.text, audio: marks.audio, heard: marks.heard };
    for (const [kind, part] of Object.entries(parts)) {
      const bar = document.createElement("div");
      bar.className = `bar ${kind}`;
      if (part) {
        bar.style.left = `${(100 * part.first) / span}%`;
        bar.style.width = `${Math.max(0.8, (100 * (part.last - part.first)) / span)}%`;
      }
      bars.append(bar);
    }
    row.append(head, bars);
    return row;
  }

  legend() {
    const legend = document.createElement("p");
    legend.className = "legend";
    for (const [kind, label] of [["wait", "wait"], ["text", "text"], ["audio", "speech"], ["heard", "heard"]]) {
      const swatch = document.createElement("span");
      swatch.className = `swatch ${kind}`;
      legend.append(swatch, ` ${label} `);
    }
    return legend;
  }
}
