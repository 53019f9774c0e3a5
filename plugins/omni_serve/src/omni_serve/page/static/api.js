// Calls the server: with the key of this tab, and with answers as they arrive.

const KEY = "omni-api-key";

export function key() {
  return sessionStorage.getItem(KEY) || "";
}

export function keepKey(value) {
  sessionStorage.setItem(KEY, value);
}

// An answer of the server that is an error.
export class ServerError extends Error {
  constructor(status, error) {
    super(error.message || `status ${status}`);
    this.status = status;
    this.code = error.code;
  }
}

function headers(more = {}) {
  return key() ? { ...more, authorization: `Bearer ${key()}` } : more;
}

async function checked(answer) {
  if (answer.ok) return answer;
  let error = {};
  try {
    error = (await answer.json()).error || {};
  } catch {
    // A proxy's answer has another form.
  }
  throw new ServerError(answer.status, error);
}

export async function getJson(path, signal) {
  const answer = await checked(await fetch(path, { headers: headers(), signal, cache: "no-store" }));
  return answer.json();
}

// Yields the chunks of a streamed chat completion.
export async function* chat(body, signal) {
  const answer = await checked(
    await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    }),
  );
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(500, chunk.error);
    yield chunk;
  }
}

// Yields the events of images: of a prompt, or of files and an instruction.
export async function* imageEvents(body, files, signal) {
  const form = new FormData();
  if (files.length) {
    for (const [name, value] of Object.entries(body)) form.append(name, String(value));
    for (const file of files) form.append("image[]", file);
  }
  const answer = await checked(
    await fetch(files.length ? "v1/images/edits" : "v1/images/generations", {
      method: "POST",
      headers: headers(files.length ? {} : { "content-type": "application/json" }),
      body: files.length ? form : JSON.stringify(body),
      signal,
    }),
  );
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(500, event.error);
    yield event;
  }
}

// Yields the data of server-sent events. The server writes each event as one line.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trim();
  }
}

// Opens the WebSocket of conversations by voice. A browser can send a key only as a subprotocol.
export function realtimeSocket(model) {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.searchParams.set("model", model);
  const protocols = ["realtime"];
  if (key()) protocols.push(`openai-insecure-api-key.${key()}`);
  return new WebSocket(url, protocols);
}

// Returns float samples of base64 PCM16.
export function samplesOf(base64) {
  const bytes = bytesOf(base64);
  const view = new DataView(bytes.buffer);
  const samples = new Float32Array(bytes.length >> 1);
  for (let index = 0; index < samples.length; index++) samples[index] = view.getInt16(2 * index, true) / 32768;
  return samples;
}

export function pcm16(samples) {
  const made = new DataView(new ArrayBuffer(2 * samples.length));
  samples.forEach((value, index) => made.setInt16(2 * index, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true));
  return new Uint8Array(made.buffer);
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

export function base64Of(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text);
}
