// Draws the pipeline, stages in layers from top to bottom, and keeps its numbers up to date while it is visible.

import { getJson } from "./api.js";
import { svg } from "./dom.js";

const BOX = { width: 132, height: 62, gap: 12, lane: 14, below: 27 };
const WINDOW = 5; // seconds over which rates and latencies are taken
const SATURATED = 0.9; // the share of the time from which on a stage has no room
// Returns the layer of each stage: one below the lowest stage that sends to it. Edges back do not count.
function layers(stages, edges) {
  const layer = new Map(stages.map((each) => [each.name, 0]));
  for (let round = 0; round < stages.length; round++) {
    let changed = false;
    for (const edge of edges) {
      if (layer.get(edge.to) <= layer.get(edge.from) && layer.get(edge.from) + 1 < stages.length) {
        layer.set(edge.to, layer.get(edge.from) + 1);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return layer;
}

// Returns the place of each stage, and for each edge the points that it goes through. An edge over several layers has a lane in each.
export function layout({ stages, edges }) {
  const layer = layers(stages, edges);
  const rows = [];
  const put = (row, item) => (rows[row] ||= []).push(item);
  for (const stage of stages) put(layer.get(stage.name), { name: stage.name, width: BOX.width, above: [] });
  const find = (name) => rows.flat().find((each) => each.name === name);
  const ways = edges.map((edge) => {
    const way = [edge.from];
    for (let row = layer.get(edge.from) + 1; row < layer.get(edge.to); row++) {
      const lane = `${edge.from}>${edge.to}@${row}`;
      put(row, { name: lane, width: BOX.lane, above: [] });
      way.push(lane);
    }
    way.push(edge.to);
    for (let index = 1; index < way.length; index++) find(way[index]).above.push(way[index - 1]);
    return way;
  });
  const width = Math.max(...rows.map((row) => row.reduce((sum, each) => sum + each.width + BOX.gap, -BOX.gap)));
  const places = new Map();
  rows.forEach((row, index) => {
    for (const each of row) {
      const over = each.above.map((name) => places.get(name)?.x ?? width / 2);
      each.at = over.length ? over.reduce((sum, x) => sum + x, 0) / over.length : width / 2;
    }
    row.sort((a, b) => a.at - b.at);
    let x = (width - row.reduce((sum, each) => sum + each.width + BOX.gap, -BOX.gap)) / 2;
    for (const each of row) {
      places.set(each.name, { x: x + each.width / 2, y: 2 + index * (BOX.height + BOX.below), lane: each.width === BOX.lane });
      x += each.width + BOX.gap;
    }
  });
  return { places, ways, width: width + 4, height: 4 + rows.length * (BOX.height + BOX.below) - BOX.below };
}

function path(way, places) {
  let text = "";
  way.forEach((name, index) => {
    const { x, y, lane } = places.get(name);
    if (!index) {
      text = `M${x} ${y + BOX.height}`;
      return;
    }
    const before = places.get(way[index - 1]);
    const low = before.y + BOX.height;
    const end = index === way.length - 1 ? y - 3 : y;
    text += `C${before.x} ${low + BOX.below / 2} ${x} ${y - BOX.below / 2} ${x} ${end}`;
    if (lane) text += `V${y + BOX.height}`;
  });
  return text;
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

function percent(share) {
  return `${Math.round(share * 100)}%`;
}

// Returns the share of a processor that each replica of a stage has used.
function share(stage, was, seconds) {
  return Math.max(0, stage.counters.cpu_seconds - was.cpu_seconds) / seconds / Math.max(1, stage.replicas);
}

function size(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB/s` : `${(bytes / 1e6).toFixed(1)} MB/s`;
}

export class Graph {
  constructor({ place, note, requests, load, onAnswer }) {
    Object.assign(this, { place, note, requests, load, onAnswer });
    this.shape = "";
    this.before = [];
    document.addEventListener("visibilitychange", () => this.poll());
  }

  // Is it seen? In a hidden tab, or behind another panel of a phone, nothing is asked.
  get visible() {
    return document.visibilityState === "visible" && this.place.getClientRects().length > 0;
  }

  start() {
    this.started = true;
    this.poll();
  }

  stop() {
    this.started = false;
    clearTimeout(this.timer);
    this.note.textContent = "· not live";
  }

  async poll() {
    clearTimeout(this.timer);
    if (!this.started || this.busy || !this.visible) return;
    this.busy = true;
    try {
      const now = await getJson("v1/omni/pipeline");
      this.show(now);
      this.note.textContent = "";
      this.onAnswer(null, now);
    } catch (error) {
      this.note.textContent = error.status === 403 ? "this key may not see it" : "· not live";
      this.onAnswer(error);
    }
    this.busy = false;
    if (this.started) this.timer = setTimeout(() => this.poll(), this.pause ?? 1000);
  }

  show(now) {
    const shape = JSON.stringify([now.stages.map((each) => each.name), now.edges.map((each) => [each.from, each.to, each.stream])]);
    if (shape !== this.shape) {
      this.draw(now);
      this.shape = shape;
      this.before = [];
    }
    while (this.before.length > 1 && now.time - this.before[0].time > WINDOW) this.before.shift();
    const then = this.before[0] ?? null;
    const seconds = then ? Math.max(0.1, now.time - then.time) : 1;
    const last = this.before.at(-1);
    now.stages.forEach((stage, index) => this.update(stage, then?.stages[index].counters, seconds));
    now.edges.forEach((edge, index) => {
      const was = then?.edges[index] ?? edge;
      const rate = Math.max(0, edge.messages - was.messages) / seconds;
      const bytes = Math.max(0, edge.bytes - was.bytes) / seconds;
      const drawn = this.edges[index];
      drawn.line.classList.toggle("busy", Boolean(last) && edge.messages > last.edges[index].messages);
      drawn.label.textContent = rate > 0 ? (bytes >= 500 ? size(bytes) : `${rate.toFixed(rate < 10 ? 1 : 0)}/s`) : "";
      drawn.title.textContent = `${edge.from} to ${edge.to}: ${edge.messages} messages, ${(edge.bytes / 1e6).toFixed(2)} MB`;
    });
    const waiting = now.requests.waiting ? `, ${now.requests.waiting} waiting` : "";
    this.requests.textContent = `${now.requests.running} running${waiting}, ${now.requests.completed ?? 0} done`;
    this.showLoad(now, then, seconds);
    this.before.push(now);
    this.pause = now.requests.running ? 400 : 1000;
  }

  // The whole pipeline in a line: requests a second, late sound, and what has the least room.
  showLoad(now, then, seconds) {
    const grown = (name) =>
      now.stages.reduce((sum, stage, index) => sum + Math.max(0, stage.counters[name] - (then?.stages[index].counters[name] ?? 0)), 0);
    const rate = then ? Math.max(0, (now.requests.completed ?? 0) - (then.requests.completed ?? 0)) / seconds : 0;
    const parts = [`${rate.toFixed(2)} a second`];
    const late = now.stages.reduce((sum, stage) => sum + stage.counters.late_seconds, 0);
    const sound = now.stages.reduce((sum, stage) => sum + stage.counters.sound_seconds, 0);
    if (sound > 0) parts.push(`${late.toFixed(2)} s late in ${sound.toFixed(1)} s of sound`);
    if (then && grown("cpu_seconds") > 0) {
      const shares = now.stages.map((stage, index) => [stage.name, share(stage, then.stages[index].counters, seconds)]);
      const [name, most] = shares.reduce((best, each) => (each[1] > best[1] ? each : best));
      parts.push(`${most >= SATURATED ? "saturates" : "busiest"}: ${name} ${percent(most)}`);
    }
    this.load.textContent = parts.join(" · ");
    this.load.classList.toggle("bad", grown("late_seconds") > 0.01 && Boolean(then));
  }

  update(stage, was, seconds) {
    const now = stage.counters;
    const node = this.nodes.get(stage.name);
    const count = was ? now["latency.count"] - was["latency.count"] : 0;
    const mean = count > 0 ? (now["latency.sum"] - was["latency.sum"]) / count : now["latency.count"] ? now["latency.p50"] : null;
    const rate = was ? Math.max(0, now.completed - was.completed) / seconds : 0;
    const running = Math.max(0, now.in_flight);
    node.box.setAttribute("class", `stage ${stage.state}${running ? " busy" : ""}`);
    node.queue.textContent = `${now.queued} queued · ${running} running`;
    node.rate.textContent = `${duration(mean)} · ${rate.toFixed(1)}/s`;
    const busy = was ? share(stage, was, seconds) : 0;
    const room = BOX.width - 20;
    node.bar.setAttribute("width", room * Math.min(1, busy));
    node.bar.setAttribute("class", `bar${busy >= SATURATED ? " full" : ""}`);
    const done = was ? now.completed - was.completed : 0;
    const work = done > 0 ? duration((now.cpu_seconds - was.cpu_seconds) / done) : "–";
    const against = `; computes ${percent(busy)} of the time, ${work} for a request`;
    const failed = now.failed ? `, ${now.failed} failed` : "";
    const restarts = stage.restarts ? `, ${stage.restarts} restarts${stage.reason ? ` (${stage.reason})` : ""}` : "";
    node.title.textContent =
      `${stage.name}${stage.role ? ` (${stage.role})` : ""}: ${stage.state}, ${now.completed} completed${failed}${restarts}; ` +
      `latency p50 ${duration(now["latency.p50"])}, p99 ${duration(now["latency.p99"])}${against}; process ${stage.units.join(", ")}`;
  }

  draw(now) {
    const { places, ways, width, height } = layout(now);
    const picture = svg("svg", { viewBox: `-2 0 ${width} ${height}`, role: "img", "aria-label": `The stages of ${now.pipeline}` });
    const arrow = (id) =>
      svg("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 5, markerHeight: 5, orient: "auto" },
        svg("path", { d: "M0 0L8 4L0 8z", class: id }));
    picture.append(svg("defs", {}, arrow("arrow"), arrow("arrow-stream")));
    this.edges = now.edges.map((edge, index) => {
      const title = svg("title");
      const kind = edge.stream ? " stream" : "";
      const line = svg("path", { d: path(ways[index], places), class: `edge${kind}`, "marker-end": `url(#arrow${edge.stream ? "-stream" : ""})` }, title);
      const end = places.get(edge.to);
      const start = places.get(ways[index][ways[index].length - 2]);
      const label = svg("text", { x: end.x + (start.x - end.x) / 2 + 5, y: end.y - BOX.below / 2 + 3, class: "edge-label" });
      picture.append(line);
      return { line, label, title };
    });
    this.nodes = new Map();
    for (const stage of now.stages) {
      const { x, y } = places.get(stage.name);
      const left = x - BOX.width / 2;
      const title = svg("title");
      const text = (dy, name) => svg("text", { x: left + 10, y: y + dy, class: name });
      const label = text(17, "name");
      label.textContent = stage.name.length > 16 ? `${stage.name.slice(0, 15)}…` : stage.name;
      const [queue, rate] = [text(32, "numbers"), text(46, "numbers")];
      const box = svg("g", {}, title, svg("rect", { x: left, y, width: BOX.width, height: BOX.height, rx: 9 }),
        svg("circle", { cx: left + BOX.width - 12, cy: y + 13, r: 3.5 }), label, queue, rate);
      const track = svg("rect", { x: left + 10, y: y + 53, width: BOX.width - 20, height: 3, rx: 1.5, class: "track" });
      const bar = svg("rect", { x: left + 10, y: y + 53, width: 0, height: 3, rx: 1.5, class: "bar" });
      box.append(track, bar);
      picture.append(box);
      this.nodes.set(stage.name, { box, queue, rate, title, bar });
    }
    picture.append(...this.edges.map((each) => each.label));
    picture.style.maxWidth = `${width}px`;
    this.place.replaceChildren(picture);
  }
}
