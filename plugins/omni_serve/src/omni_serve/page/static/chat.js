// One conversation: asks, and fills the answer, by the ways that a pipeline has; retries, and puts a question back to be changed.

import { chat, samplesOf, speech, transcript, transcriptEvents } from "./api.js";
import { notice } from "./dom.js";
import { draw } from "./images.js";
import { wav } from "./microphone.js";
import { messagesOf } from "./store.js";
import { tell } from "./messages.js";

// Returns what a model is for: "chat", "draw", "hear" for one that only writes recordings down, "speak" for one that only speaks texts.
export function kindOf({ capabilities }) {
  const { inputs, outputs, transcription } = capabilities;
  if (outputs.includes("image")) return "draw";
  if (transcription === "direct" && !outputs.includes("audio") && !inputs.includes("text")) return "hear";
  return outputs.includes("audio") && !outputs.includes("text") && !inputs.includes("audio") ? "speak" : "chat";
}

function fresh() {
  return { id: `${Date.now()}-${Math.random()}`, title: "", model: "", made: Date.now(), turns: [] };
}

export class Chat {
  // heard: called with the request whose speech is played from now on. changed: called when a conversation was, or an answer began or ended.
  constructor({ store, settings, messages, waterfall, player, heard, changed, failed }) {
    Object.assign(this, { store, settings, messages, waterfall, player, heard, changed, failed });
    this.chat = fresh();
  }

  // Shows a conversation, or begins one.
  open(chat) {
    this.stop();
    this.messages.clear();
    this.chat = chat ?? fresh();
    for (const turn of this.chat.turns) this.messages.kept(turn);
    this.changed();
  }

  get turns() {
    return this.chat.turns;
  }

  stop() {
    this.running?.abort.abort();
  }

  // Adds a turn of the user and keeps the conversation.
  add(turn) {
    this.turns.push(turn);
    this.chat.model = this.model.id;
    this.chat.title ||= (turn.text || turn.media?.[0]?.name || "Talk").slice(0, 60);
    return this.save();
  }

  async save(chat = this.chat) {
    if (!chat.turns.length || (chat !== this.chat && !this.store.chats.includes(chat))) return; // deleted while it was answered
    await this.store.save(chat);
    this.changed();
  }

  // Takes away a turn and all after it.
  cut(turn) {
    const index = this.turns.indexOf(turn);
    if (index < 0) return;
    this.turns.length = index;
    this.messages.cut(turn);
  }

  async ask(turn, spoken) {
    this.messages.user(turn).end();
    this.add(turn);
    await this.answer(turn, spoken);
  }

  async retry(turn, spoken) {
    if (this.running) return;
    const asked = this.turns[this.turns.indexOf(turn) - 1];
    if (asked?.role !== "user") return;
    this.cut(turn);
    await this.answer(asked, spoken);
  }

  async answer(asked, spoken) {
    const { chat, waterfall, settings, model } = this;
    const turn = { role: "assistant", text: "" };
    const abort = new AbortController();
    const running = (this.running = { abort, turn });
    this.changed();
    if (spoken) await this.listen();
    const earlier = await messagesOf(chat.turns);
    chat.turns.push(turn);
    const view = this.messages.answer(turn);
    view.run();
    const request = waterfall.begin(asked.text || asked.media.map((each) => each.name).join(", "));
    if (spoken) this.heard(request);
    const sound = [];
    const play = (samples) => {
      waterfall.mark(request, "audio");
      sound.push(samples);
      this.player.write(samples.slice());
    };
    const write = (piece) => {
      waterfall.mark(request, "text");
      view.text(piece);
    };
    try {
      const given = { model, settings, asked, answer: turn, view, play, write, spoken, earlier, signal: abort.signal };
      await { chat: converse, draw, hear, speak }[kindOf(model)](given);
    } catch (error) {
      request.failed = abort.signal.aborted ? "stopped" : "failed";
      if (abort.signal.aborted) view.note("stopped");
      else view.fail(error.message);
      this.failed(error);
    }
    if (sound.length) turn.speech = wav(sound);
    waterfall.mark(request, "end");
    if (spoken) this.player.end();
    view.end();
    tell(turn);
    if (this.running === running) this.running = null;
    await this.save(chat);
    this.changed();
  }

  // Without a device that plays, the answer is still read.
  async listen() {
    try {
      await this.player.open();
      this.player.begin();
    } catch (error) {
      notice(`Speech cannot be played here: ${error.message}`);
    }
  }

  // Returns the speech of a text that had none.
  async aloud(turn) {
    const sound = [];
    for await (const samples of speech({ model: this.model.id, input: turn.text, ...this.manner }, null)) sound.push(samples);
    turn.speech = wav(sound);
    this.store.write(this.chat);
    return turn.speech;
  }

  // The voice and the speed of a given text.
  get manner() {
    const { voice } = this.settings.values;
    return { ...(voice && { voice }), speed: this.settings.speed };
  }
}

async function converse({ model, settings, earlier, spoken, signal, view, play, write }) {
  const { system, voice } = settings.values;
  const messages = system ? [{ role: "system", content: system }, ...earlier] : earlier;
  const body = { model: model.id, messages, ...settings.parameters };
  if (model.capabilities.outputs.includes("audio")) body.modalities = spoken ? ["text", "audio"] : ["text"];
  if (spoken) body.audio = { format: "pcm16", ...(voice && { voice }) };
  if (spoken && settings.paced && settings.speed !== 1) {
    const groups = (body.stage_sampling ??= {});
    groups[settings.paced] = { ...groups[settings.paced], speed: settings.speed };
  }
  for await (const { choices } of chat(body, signal)) {
    const { delta = {}, finish_reason } = choices[0] ?? {};
    if (delta.reasoning_content) view.think(delta.reasoning_content);
    const piece = delta.content || delta.audio?.transcript;
    if (piece) write(piece);
    if (delta.audio?.data) play(samplesOf(delta.audio.data));
    if (finish_reason === "length") view.note("cut: the longest answer");
  }
}

async function hear({ model, settings, asked, answer, signal, write }) {
  const { blob } = asked.media[0];
  const fields = { model: model.id, ...settings.parameters };
  const group = model.capabilities.parameters[model.capabilities.plain_parameters] ?? [];
  if (group.some((each) => each.name === "timestamps")) {
    const found = await transcript(fields, blob, signal);
    write(found.text);
    if (found.segments?.length) Object.assign(answer, { segments: found.segments, recording: blob });
    return;
  }
  for await (const event of transcriptEvents(fields, blob, signal)) if (event.delta) write(event.delta);
}

async function speak({ model, settings, asked, signal, play }) {
  const { voice } = settings.values;
  const body = { model: model.id, input: asked.text, ...settings.parameters, ...(voice && { voice }), speed: settings.speed };
  for await (const samples of speech(body, signal)) play(samples);
}
