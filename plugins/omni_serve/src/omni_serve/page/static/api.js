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

// There was no answer, or it broke off.
export class Unreachable extends Error {
  constructor() {
    super(navigator.onLine ? "The server does not answer. Is it still running?" : "This device is offline.");
  }
}

async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new Unreachable() : error;
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
  const answer = await checked(await reached(fetch(path, { headers: headers(), signal, cache: "no-store" })));
  return answer.json();
}

async function post(path, options) {
  return checked(await reached(fetch(path, { method: "POST", ...options })));
}

async function* eventsOf(path, options) {
  const answer = await post(path, options);
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ServerError(500, event.error);
    yield event;
  }
}

function json(body) {
  return { headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body) };
}

function form(fields, name, files) {
  const body = new FormData();
  for (const [key, value] of Object.entries(fields)) body.append(key, String(value));
  for (const file of files) body.append(name, file, file.name || "recording.wav");
  return { headers: headers(), body };
}

// Yields the chunks of a streamed chat completion.
export function chat(body, signal) {
  return eventsOf("v1/chat/completions", { ...json({ ...body, stream: true, stream_options: { include_usage: true } }), signal });
}

// Yields the events of images: of a prompt, or of files and an instruction.
export function imageEvents(body, files, signal) {
  if (files.length) return eventsOf("v1/images/edits", { ...form(body, "image[]", files), signal });
  return eventsOf("v1/images/generations", { ...json(body), signal });
}

// Yields the events of a transcript.
export function transcriptEvents(fields, file, signal) {
  return eventsOf("v1/audio/transcriptions", { ...form({ ...fields, stream: true }, "file", [file]), signal });
}

// Returns a transcript with the times of its parts.
export async function transcript(fields, file, signal) {
  const asked = form({ ...fields, response_format: "verbose_json" }, "file", [file]);
  return (await post("v1/audio/transcriptions", { ...asked, signal })).json();
}

// Yields the samples of a text that is spoken.
export async function* speech(body, signal) {
  const answer = await post("v1/audio/speech", { ...json({ ...body, response_format: "pcm" }), signal });
  const reader = answer.body.getReader();
  let rest = new Uint8Array();
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const whole = bytes.length & ~1;
    rest = bytes.slice(whole);
    if (whole) yield samplesIn(bytes.subarray(0, whole));
  }
}

// Yields the data of server-sent events. The server writes each event as one line.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
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
  return samplesIn(bytesOf(base64));
}

function samplesIn(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
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
