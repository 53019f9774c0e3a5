// Wires the page: what the pipeline can do, one conversation, talk by voice, the panels, the key, and the server's presence.

import { getJson, keepKey, Unreachable } from "./api.js";
import { Chat, kindOf } from "./chat.js";
import { Chats } from "./chats.js";
import { Composer } from "./composer.js";
import { $, dress, element, notice } from "./dom.js";
import { Graph } from "./graph.js";
import { EXAMPLES as PICTURES } from "./images.js";
import { Messages } from "./messages.js";
import { meter } from "./microphone.js";
import { Player } from "./player.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";
import { Talk } from "./talk.js";
import { Waterfall } from "./waterfall.js";

const QUESTIONS = ["Say hello.", "Who are you?", "Tell me a joke."];
const TEXTS = ["Good morning! How did you sleep?", "The train to the sea leaves at ten past nine."];
const LEADS = { chat: "What is on your mind?", draw: "Describe a picture.", hear: "What was said?", speak: "What shall I say?" };
const HINTS = { chat: "Message", draw: "Describe a picture", hear: "", speak: "A text to speak" };
const VERBS = { chat: "Send", draw: "Draw", hear: "Transcribe", speak: "Speak" };
const STATES = { connecting: "Connecting", listening: "Listening", hearing: "Hearing you", thinking: "Thinking", speaking: "Speak to interrupt" };

let model = null;
let kind = "chat";
let talk = null;
let editing = null; // the turn that is put back to be changed
let heard = null; // the request whose speech is played

const store = new Store(
  (one) => one === chat.chat && Boolean(chat.running || talk),
  (id, now) => {
    if (id !== chat.chat.id) return chats.show();
    endEdit();
    chat.open(now);
  },
);
const settings = new Settings();
const waterfall = new Waterfall($("waterfall"));
const player = new Player(playback);
const messages = new Messages($("messages"), {
  retry: (turn) => chat.retry(turn, speaks()),
  edit,
  silence: (turn) => {
    const spoken = chat.running?.turn === turn || (!player.status.done && chat.turns.at(-1) === turn);
    if (spoken) player.clear();
    return spoken;
  },
});
const composer = new Composer(buttons);
const chats = new Chats({ store, current: () => chat.chat, open });
const chat = new Chat({
  store,
  settings,
  messages,
  waterfall,
  player,
  heard: (request) => (heard = request),
  changed: () => {
    chats.show();
    graph.poll();
    buttons();
  },
  failed: (error) => {
    if (error.status === 401) askForKey(error);
    if (error instanceof Unreachable) lost(error);
  },
});

// --- the server --------------------------------------------------------------------------------------------------------
async function connect() {
  clearTimeout(connect.timer);
  try {
    const { data } = await getJson("v1/models");
    found(data[0]);
  } catch (error) {
    if (error.status === 401) return askForKey(error);
    lost(error);
  }
}

function found(now) {
  if (JSON.stringify(now) !== JSON.stringify(model)) offer(now);
  connect.wait = 1;
  $("offline").hidden = true;
  document.body.classList.remove("away");
  if ($("key-dialog").open) $("key-dialog").close();
  state("ready", "ready");
  graph.start();
  buttons();
}

// Says that there is no answer, and asks again, each time a little later.
function lost(error) {
  graph.stop();
  connect.wait = Math.min(15, 2 * (connect.wait || 1));
  let left = connect.wait;
  state("offline", navigator.onLine ? "no answer" : "offline");
  document.body.classList.add("away");
  $("offline").hidden = false;
  clearTimeout(connect.timer);
  const count = () => {
    $("offline-text").textContent = `${error.message} Trying again in ${left} s.`;
    connect.timer = left-- > 0 ? setTimeout(count, 1000) : setTimeout(connect);
  };
  count();
}

function state(what, text) {
  $("state").className = `state ${what}`;
  $("state").textContent = text;
}

function offer(now) {
  model = chat.model = now;
  kind = kindOf(model);
  const { id, capabilities } = model;
  $("model").textContent = id;
  document.title = `${id} · omni`;
  const takes = capabilities.inputs.length ? capabilities.inputs : ["text", "image", "audio", "video"];
  const sounds = !capabilities.outputs.length || capabilities.outputs.includes("audio");
  composer.offer(takes);
  settings.offer(model, kind);
  messages.on.aloud = kind === "chat" && capabilities.speech ? (turn) => chat.aloud(turn) : null;
  messages.on.change = capabilities.image_edits ? (turn) => composer.attach([new File([turn.picture], "picture.png", { type: turn.picture.type })]) : null;
  const talks = kind === "chat" && takes.includes("audio") && sounds;
  $("talk").hidden = $("big-talk").hidden = !talks;
  $("speak").hidden = !(sounds && kind === "chat");
  $("text").hidden = kind === "hear";
  $("hear").hidden = kind !== "hear";
  $("text").placeholder = HINTS[kind];
  $("lead").textContent = LEADS[kind];
  const ways = ["Type", ...(talks ? ["talk"] : []), ...(composer.kinds ? [`drop ${composer.kinds.replace(" and ", " or ")}`] : [])];
  $("about").textContent = {
    chat: `${ways.length > 1 ? `${ways.slice(0, -1).join(", ")} or ${ways.at(-1)}` : "Type a message"}. ${sounds ? "Answers come as text and speech." : ""}`,
    draw: `The picture arrives with previews of it${capabilities.image_edits ? "; attach one, and say what is to be changed" : ""}.`,
    hear: "Drop a recording, choose one, or record. It is written down here.",
    speak: "Write a text; it is spoken while it is made, and kept to play again or download.",
  }[kind];
  examples({ chat: takes.includes("text") ? QUESTIONS : [], draw: PICTURES, hear: [], speak: TEXTS }[kind]);
  document.body.classList.add("ready");
  chat.open(null);
}

function examples(texts) {
  const made = texts.map((text) => {
    const button = element("button", { type: "button", className: "example", textContent: text });
    button.addEventListener("click", () => {
      composer.set({ text });
      send();
    });
    return button;
  });
  $("examples").replaceChildren(...made);
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
$("try-now").addEventListener("click", connect);
addEventListener("online", connect);

const graph = new Graph({
  place: $("graph"),
  note: $("graph-note"),
  requests: $("requests"),
  load: $("load"),
  onAnswer: (error, now) => {
    const down = now?.stages.find((each) => each.state !== "ready" && each.state !== "stalled");
    document.body.classList.add("drawn");
    if (error?.status === 401) askForKey(error);
    else if (error instanceof Unreachable) lost(error);
    else if (down) state("waiting", `${down.name}: ${down.state}`);
    else state("ready", "ready");
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
  if (heard && status.done && !chat.running) {
    if (heard.marks.heard) waterfall.mark(heard, "heard");
    waterfall.draw();
    heard = null;
    if (talk) talk.state("listening");
  }
  buttons();
}

function speaks() {
  return kind === "speak" || (kind === "chat" && !$("speak").hidden && $("speak").getAttribute("aria-pressed") === "true");
}

function buttons() {
  const busy = Boolean(chat.running) || (!player.status.done && !talk);
  const given = kind === "hear" ? composer.attached.length : composer.text || composer.attached.length;
  $("stop").hidden = !busy;
  $("send").hidden = busy;
  $("send").disabled = !model || !given || Boolean(composer.recording);
  dress($("send"), "send", VERBS[kind]).classList.toggle("icon", !["hear", "speak"].includes(kind));
  $("verb").textContent = VERBS[kind];
  $("attach").disabled = $("record").disabled = Boolean(talk);
}

// --- questions ---------------------------------------------------------------------------------------------------------
async function send() {
  const { text } = composer;
  const media = composer.attached;
  if (chat.running || !model || $("send").disabled) return;
  if (talk && !text) return;
  if (editing) chat.cut(editing);
  endEdit();
  composer.set();
  if (talk) return talk.type(text);
  player.clear();
  await chat.ask({ role: "user", text, media }, speaks());
  if (matchMedia("(hover: hover)").matches) $("text").focus();
}

function edit(turn) {
  if (chat.running || talk) return;
  endEdit();
  editing = turn;
  composer.set(turn.spoken && turn.text ? { text: turn.text } : turn);
  $("editing").hidden = false;
  for (const each of document.querySelectorAll(".message")) {
    each.classList.toggle("replaced", chat.turns.indexOf(each.turn) >= chat.turns.indexOf(turn));
  }
  $("text").focus();
}

function endEdit() {
  editing = null;
  $("editing").hidden = true;
  for (const each of document.querySelectorAll(".replaced")) each.classList.remove("replaced");
}

function open(other) {
  stop();
  endEdit();
  composer.set();
  chat.open(other);
  if (innerWidth < 900) panel("sidebar", false);
  $("text").focus();
}

function stop() {
  chat.stop();
  player.clear();
  messages.sound.pause();
  talk?.close();
  composer.endRecording(true);
}

async function toggleTalk() {
  if (talk) return talk.close();
  if (!model) return;
  stop();
  endEdit();
  const mine = (talk = new Talk({
    model,
    settings,
    chat,
    player,
    messages,
    waterfall,
    onPiece: loud,
    heard: (request) => (heard = request),
    state: (what) => ($("talk-state").textContent = mine.muted ? "Muted" : STATES[what]),
    ended: (error) => {
      talk = null;
      showTalk();
      if (error) notice(error.message);
    },
  }));
  showTalk();
  try {
    await mine.open();
  } catch (error) {
    mine.close(new Error(`The microphone cannot be used: ${error.message}`));
  }
}

const loud = meter($("talk-level"));

function showTalk() {
  dress($("talk"), talk ? "stop" : "wave", "", Boolean(talk));
  $("talk").lastChild.textContent = talk ? "End talk" : "Talk";
  dress($("mute"), "mic", "Mute the microphone", false);
  $("talk-panel").hidden = !talk;
  $("text").placeholder = talk ? "Type in between" : HINTS[kind];
  buttons();
}

$("mute").addEventListener("click", () => {
  talk.muted = !talk.muted;
  dress($("mute"), "mic", "Mute the microphone", talk.muted);
  talk.state("listening");
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open], :popover-open")) return;
  if (editing) $("cancel-edit").click();
  else if (document.body.classList.contains("sidebar") && innerWidth < 900) panel("sidebar", false);
  else stop();
});
$("stop").addEventListener("click", stop);
$("cancel-edit").addEventListener("click", () => {
  endEdit();
  composer.set();
});
for (const each of ["talk", "big-talk"]) $(each).addEventListener("click", toggleTalk);
for (const each of ["new-chat", "new-chat-too"]) $(each).addEventListener("click", () => open(null));
$("hear").addEventListener("click", () => $("file").click());
$("settings").addEventListener("click", () => $("settings-dialog").showModal());

// --- what is shown, and how --------------------------------------------------------------------------------------------
function speaking(on) {
  dress($("speak"), on ? "sound" : "silent", on ? "Answers are spoken" : "Answers are not spoken", on);
  localStorage.setItem("omni-speak", on);
  if (!on) player.clear();
}
$("speak").addEventListener("click", () => speaking($("speak").getAttribute("aria-pressed") !== "true"));

// Shows or folds a panel. On a wide page it stays so.
function panel(name, on, keep = false) {
  document.body.classList.toggle(name, on);
  const button = $(`show-${name}`);
  button.setAttribute("aria-expanded", String(on));
  if (keep && innerWidth >= 900) localStorage.setItem(`omni-${name}`, on);
  if (name === "pipeline") graph.poll();
}
function panels() {
  for (const [name, least] of [["sidebar", 1200], ["pipeline", 1100]]) {
    const kept = localStorage.getItem(`omni-${name}`);
    panel(name, innerWidth >= 900 && (kept ? kept === "true" : innerWidth >= least));
  }
}
panels();
matchMedia("(min-width: 900px)").addEventListener("change", panels);
for (const name of ["sidebar", "pipeline"]) {
  $(`show-${name}`).addEventListener("click", () => panel(name, !document.body.classList.contains(name), true));
}
$("backdrop").addEventListener("click", () => panel("sidebar", false));

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

for (const button of document.querySelectorAll("[data-icon]")) dress(button, button.dataset.icon);
speaking(localStorage.getItem("omni-speak") !== "false");
showTalk();
composer.showRecording();
await store.open();
chats.show();
document.body.classList.add("here");
connect();
