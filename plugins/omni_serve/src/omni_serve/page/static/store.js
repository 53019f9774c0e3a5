// Keeps conversations in the browser's database: the newest, up to a number and a size. Where there is none, in this tab.
// Tabs tell each other what they have changed.

const MOST = 60; // conversations
const BYTES = 200e6; // of sound and pictures in all of them

function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function bytesIn(chat) {
  const blobs = chat.turns.flatMap((turn) => [turn.speech, turn.picture, ...(turn.media ?? []).map((each) => each.blob)]);
  return blobs.reduce((sum, each) => sum + (each?.size ?? 0), 0) + 2 * chat.turns.reduce((sum, turn) => sum + turn.text.length, 0);
}

function newest(chats) {
  return chats.sort((a, b) => b.changed - a.changed);
}

export class Store {
  chats = []; // the newest first
  tabs = new BroadcastChannel("omni-chats"); // ids of conversations

  // busy: returns true of a conversation that is answered in this tab. elsewhere: called with the id of one that another tab has changed, and
  // what it is now, or undefined.
  constructor(busy = () => false, elsewhere = () => {}) {
    Object.assign(this, { busy, elsewhere });
    this.tabs.onmessage = ({ data }) => this.take(data);
  }

  async open() {
    try {
      const request = indexedDB.open("omni", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
      this.database = await asked(request);
      this.chats = newest(await asked(this.objects("readonly").getAll()));
    } catch {
      this.database = null;
    }
  }

  get kept() {
    return Boolean(this.database);
  }

  objects(mode) {
    return this.database.transaction("chats", mode).objectStore("chats");
  }

  // Makes a conversation the newest, and lets the oldest go where there are too many.
  async save(chat) {
    chat.changed = Date.now();
    this.chats = [chat, ...this.chats.filter((each) => each !== chat)];
    let room = BYTES;
    const gone = this.chats.filter((each, index) => (room -= bytesIn(each)) < 0 && index > 0 ? true : index >= MOST);
    await Promise.all(gone.map((each) => this.remove(each)));
    await this.write(chat);
  }

  async write(chat) {
    if (!this.chats.includes(chat)) return;
    try {
      if (this.database) await asked(this.objects("readwrite").put(chat));
      this.tabs.postMessage(chat.id);
    } catch {
      this.database = null; // full: the conversations go on in this tab
    }
  }

  async remove(chat) {
    this.chats = this.chats.filter((each) => each !== chat);
    if (this.database) await asked(this.objects("readwrite").delete(chat.id));
    this.tabs.postMessage(chat.id);
  }

  async take(id) {
    if (!this.database || this.chats.some((each) => each.id === id && this.busy(each))) return;
    const now = await asked(this.objects("readonly").get(id));
    this.chats = newest([...(now ? [now] : []), ...this.chats.filter((each) => each.id !== id)]);
    this.elsewhere(id, now);
  }
}

// Returns a data: URL of a blob, or its base64 alone.
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

const FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3" };
const parts = new WeakMap(); // of blobs: the same ones are sent with every question

async function part({ kind, blob }) {
  if (!parts.has(blob)) {
    const url = await dataUrl(blob);
    const format = FORMATS[blob.type];
    const data = url.slice(url.indexOf(",") + 1);
    parts.set(blob, format ? { type: "input_audio", input_audio: { data, format } } : { type: `${kind}_url`, [`${kind}_url`]: { url } });
  }
  return parts.get(blob);
}

// Returns turns as messages of the API. What was said and written down is sent as text; a question that failed is left out.
export async function messagesOf(turns) {
  const made = [];
  for (const turn of turns) {
    if (turn.role === "assistant") {
      if (turn.text) made.push({ role: "assistant", content: turn.text });
      else if (!turn.picture && made.at(-1)?.role === "user") made.pop();
      continue;
    }
    const media = turn.spoken && turn.text ? [] : await Promise.all((turn.media ?? []).map(part));
    if (!media.length) made.push({ role: "user", content: turn.text });
    else made.push({ role: "user", content: [...media, ...(turn.text ? [{ type: "text", text: turn.text }] : [])] });
  }
  return made.filter((each) => each.content);
}

// Returns a conversation as a file: messages of the API with the speech of the answers, or a text.
export async function exported(chat, form) {
  if (form === "md") {
    const lines = chat.turns.flatMap((turn) => {
      const media = (turn.media ?? []).map((each) => `*(${each.kind}: ${each.name})*`);
      const notes = turn.picture ? ["*(a picture)*"] : [];
      return [`**${turn.role === "user" ? "You" : chat.model}**`, ...media, turn.text || turn.failed || "", ...notes].filter(Boolean);
    });
    return new Blob([`${[`# ${chat.title}`, ...lines].join("\n\n")}\n`], { type: "text/markdown" });
  }
  return new Blob([JSON.stringify(await plain(chat), null, 1)], { type: "application/json" });
}

export async function plain({ title, model, made, turns }) {
  const messages = [];
  for (const turn of turns) {
    const content = turn.role === "user" ? (await messagesOf([turn]))[0]?.content : turn.text;
    const more = {};
    if (turn.speech) more.speech = await dataUrl(turn.speech);
    if (turn.picture) more.picture = await dataUrl(turn.picture);
    if (turn.failed) more.failed = turn.failed;
    messages.push({ role: turn.role, content: content ?? "", ...more });
  }
  return { title, model, created: new Date(made).toISOString(), messages };
}
