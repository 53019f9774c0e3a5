// Wires the page: the composer, one chat with its history, talk mode, the key, the theme, and what the pipeline can do.

import { base64Of, chat, getJson, keepKey, samplesOf } from "./api.js";
import { Graph } from "./graph.js";
import { draw, draws, EXAMPLES as PICTURES } from "./images.js";
import { Messages, element, preview } from "./messages.js";
import { meter, Microphone, wav } from "./microphone.js";
import { Player } from "./player.js";
import { Talk } from "./talk.js";
import { Waterfall } from "./waterfall.js";

const $ = (id) => document.getElementById(id);
const EXAMPLES = ["Say hello.", "Who are you?", "Tell me a joke."];
const MEDIA = ["image", "audio", "video"];

const messages = new Messages($("messages"));
const waterfall = new Waterfall($("waterfall"));
const player = new Player(playback);
const level = meter($("level"));
let model = null;
let history = [];
let attached = [];
let running = null; // the answer in progress: { abort, request }
let recording = null;
let talk = null;
let heard = null; // the request whose speech is played

// --- what the pipeline can do ------------------------------------------------------------------------------------------
async function connect() {
  try {
    const { data } = await getJson("v1/models");
    model = data[0];
    $("key-dialog").close();
    offer(model);
    state("ready", "ready");
    graph.start();
  } catch (error) {
    if (error.status === 401) return askForKey(error);
    state("offline", error.message || "no answer");
    setTimeout(connect, 2000);
  }
}

function offer({ id, capabilities }) {
  $("model").textContent = id;
  document.title = `${id} · omni`;
  const takes = capabilities.inputs.length ? capabilities.inputs : ["text", ...MEDIA];
  const speaks = !capabilities.outputs.length || capabilities.outputs.includes("audio");
  const media = MEDIA.filter((each) => takes.includes(each));
  $("attach").hidden = !media.length;
  $("file").accept = media.map((each) => `${each}/*`).join(",");
  $("record").hidden = !takes.includes("audio");
  $("talk").hidden = !(takes.includes("audio") && speaks);
  $("speak-label").hidden = !speaks;
  $("speak").checked = speaks;
  const voices = capabilities.voices || [];
  if (draws(model)) {
    const [lead, about] = messages.empty.children;
    lead.textContent = "Describe a picture.";
    about.textContent = `The picture arrives with previews of it${
      capabilities.image_edits ? "; attach one, and say what is to be changed" : ""
    }.`;
    examples(PICTURES);
  }
  $("voice").hidden = !speaks || voices.length < 2;
  $("voice").replaceChildren(...voices.map((each) => new Option(each)));
}

function state(kind, text) {
  $("state").className = `state ${kind}`;
  $("state").textContent = text;
}

function askForKey(error) {
  state("offline", "key needed");
  if (error.code === "invalid_api_key") $("key-problem").textContent = "The server does not know this key.";
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key").value.trim());
  connect();
});

$("key-dialog").addEventListener("close", () => model || connect()); // Esc: it is asked for again

const graph = new Graph({
  place: $("graph"),
  note: $("graph-note"),
  requests: $("requests"),
  load: $("load"),
  onAnswer: (error, now) => {
    const down = now?.stages.find((each) => each.state !== "ready" && each.state !== "stalled");
    if (error?.status === 401) askForKey(error);
    else if (down) state("waiting", `${down.name}: ${down.state}`);
    else if (!error || error.status) state("ready", "ready");
    else state("offline", "no answer");
  },
});

// --- playback ----------------------------------------------------------------------------------------------------------
function playback(status, underruns) {
  $("underruns").textContent = underruns;
  $("underruns").classList.toggle("bad", underruns > 0);
  $("buffered").textContent = `${status.buffered.toFixed(1)} s`;
  $("played").textContent = `${status.played.toFixed(1)} s`;
  document.body.classList.toggle("playing", status.playing);
  if (heard && status.playing) waterfall.mark(heard, "heard");
  if (heard && status.done && !running) {
    if (heard.marks.heard) waterfall.mark(heard, "heard");
    waterfall.draw();
    heard = null;
  }
  buttons();
}

function buttons() {
  const busy = Boolean(running) || (!player.status.done && !talk);
  $("stop").hidden = !busy;
  $("send").hidden = busy;
  $("send").disabled = !model || Boolean(talk) || !($("text").value.trim() || attached.length);
  $("text").disabled = Boolean(talk);
}

// --- a request ---------------------------------------------------------------------------------------------------------
function content(text, media) {
  if (!media.length) return text;
  return [...media.map((each) => each.part), ...(text ? [{ type: "text", text }] : [])];
}

async function send() {
  const text = $("text").value.trim();
  if (running || talk || !model || !(text || attached.length)) return;
  const media = attached;
  const speech = !$("speak-label").hidden && $("speak").checked;
  const chatted = history; // a new chat begins another one
  const abort = new AbortController();
  running = { abort };
  clear();
  buttons();
  if (speech) await listen();
  chatted.push({ role: "user", content: content(text, media) });
  messages.user(text, media);
  const answer = messages.answer();
  const request = waterfall.begin(text || media.map((each) => each.name).join(", "));
  heard = speech ? request : null;
  setTimeout(() => graph.poll(), 100);
  const body = { model: model.id, messages: chatted, modalities: speech ? ["text", "audio"] : ["text"] };
  if (speech) body.audio = { format: "pcm16", ...(!$("voice").hidden && { voice: $("voice").value }) };
  let said = "";
  try {
    if (draws(model)) await draw({ model, text, media, answer, signal: abort.signal, edit: attach });
    else for await (const chunk of chat(body, abort.signal)) {
      const delta = chunk.choices[0]?.delta ?? {};
      const piece = delta.content || delta.audio?.transcript;
      if (piece) {
        said += piece;
        waterfall.mark(request, "text");
        answer.text(piece);
      }
      if (delta.audio?.data) {
        waterfall.mark(request, "audio");
        player.write(samplesOf(delta.audio.data));
      }
      if (chunk.choices[0]?.finish_reason === "length") answer.note("cut: the longest reply");
    }
    answer.end();
  } catch (error) {
    request.failed = abort.signal.aborted ? "stopped" : "failed";
    if (abort.signal.aborted) answer.note("stopped");
    else answer.fail(error.message);
    if (error.status === 401) askForKey(error);
    answer.end();
  }
  waterfall.mark(request, "end");
  if (said) chatted.push({ role: "assistant", content: said });
  else chatted.pop();
  if (speech) player.end();
  graph.poll();
  running = null;
  buttons();
  $("text").focus();
}

// Without a device that plays, the answer is still read.
async function listen() {
  try {
    await player.open();
    player.begin();
  } catch (error) {
    notice(`Speech cannot be played here: ${error.message}`);
  }
}

function stop() {
  running?.abort.abort();
  player.clear();
  talk?.close();
  if (recording) record();
}

// --- the composer ------------------------------------------------------------------------------------------------------
function clear() {
  $("text").value = "";
  attached = [];
  showAttached();
  grow();
}

function grow() {
  $("text").style.height = "auto";
  $("text").style.height = `${Math.min($("text").scrollHeight, 200)}px`;
  buttons();
}

async function attach(blob, name) {
  const kind = MEDIA.find((each) => blob.type.startsWith(`${each}/`));
  if (!kind || ($("attach").hidden && !$("record").offsetParent)) return notice(`${name} is no image, sound or video.`);
  const data = base64Of(new Uint8Array(await blob.arrayBuffer()));
  const url = `data:${blob.type};base64,${data}`;
  const format = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3" }[blob.type];
  const part = format ? { type: "input_audio", input_audio: { data, format } } : { type: `${kind}_url`, [`${kind}_url`]: { url } };
  attached = [...attached, { kind, name, part, blob, url: URL.createObjectURL(blob) }];
  showAttached();
  $("text").focus();
}

function showAttached() {
  $("attachments").replaceChildren(
    ...attached.map((each) => {
      const remove = element("button", { type: "button", className: "quiet icon", textContent: "×", title: "Remove" });
      remove.setAttribute("aria-label", `Remove ${each.name}`);
      remove.addEventListener("click", () => {
        attached = attached.filter((other) => other !== each);
        showAttached();
      });
      return element("div", { className: "attachment" }, preview(each.kind, each.url, each.name), remove);
    }),
  );
  buttons();
}

function notice(text) {
  messages.answer().fail(text);
}

async function record() {
  if (recording) {
    const { microphone, pieces } = recording;
    recording = null;
    showListening();
    await microphone.close();
    if (pieces.length) await attach(wav(pieces), "recording.wav");
    return;
  }
  const pieces = [];
  const microphone = new Microphone((piece) => {
    pieces.push(piece);
    level(piece);
  });
  recording = { microphone, pieces };
  showListening();
  try {
    await microphone.open();
  } catch (error) {
    recording = null;
    showListening();
    notice(`The microphone cannot be used: ${error.message}`);
  }
}

async function toggleTalk() {
  if (talk) return talk.close();
  if (running) stop();
  const mine = new Talk({
    model: model.id,
    voice: $("voice").hidden ? null : $("voice").value,
    player,
    messages,
    waterfall,
    onPiece: level,
    heard: (request) => (heard = request),
    ended: (error) => {
      talk = null;
      showListening();
      buttons();
      if (error) notice(error.message);
    },
  });
  talk = mine;
  showListening();
  buttons();
  try {
    await mine.open();
  } catch (error) {
    mine.close(new Error(`The microphone cannot be used: ${error.message}`));
  }
}

function showListening() {
  $("record").setAttribute("aria-pressed", String(Boolean(recording)));
  $("record").title = recording ? "End the recording" : "Record a message";
  $("record").setAttribute("aria-label", $("record").title);
  $("record").disabled = Boolean(talk);
  $("talk").setAttribute("aria-pressed", String(Boolean(talk)));
  $("talk").textContent = talk ? "End talk" : "Talk";
  $("level").hidden = !(recording || talk);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$("text").addEventListener("paste", (event) => {
  for (const file of event.clipboardData.files) attach(file, file.name);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("key-dialog").open) stop();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  for (const file of event.dataTransfer.files) attach(file, file.name);
});
$("stop").addEventListener("click", stop);
$("record").addEventListener("click", record);
$("talk").addEventListener("click", toggleTalk);
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  for (const file of $("file").files) await attach(file, file.name);
  $("file").value = "";
});
$("new-chat").addEventListener("click", () => {
  stop();
  history = [];
  messages.clear();
  $("text").focus();
});
$("show-pipeline").addEventListener("click", () => {
  const shown = document.body.classList.toggle("pipeline");
  $("show-pipeline").setAttribute("aria-pressed", String(shown));
  $("show-pipeline").textContent = shown ? "Chat" : "Pipeline";
  graph.poll();
});

// --- light and dark ----------------------------------------------------------------------------------------------------
function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
}
theme(localStorage.getItem("omni-theme"));
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("omni-theme", dark ? "light" : "dark");
  theme(dark ? "light" : "dark");
});

function examples(texts) {
  const buttons = texts.map((text) => {
    const button = element("button", { type: "button", className: "example", textContent: text });
    button.addEventListener("click", () => {
      $("text").value = text;
      send();
    });
    return button;
  });
  messages.empty.querySelector("#examples").replaceChildren(...buttons);
}
examples(EXAMPLES);
buttons();
connect();
