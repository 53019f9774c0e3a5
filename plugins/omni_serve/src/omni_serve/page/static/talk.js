// Converses by voice over /v1/realtime: the server finds the turns, and speaking interrupts the answer.

import { base64Of, pcm16, realtimeSocket, samplesOf } from "./api.js";
import { Microphone, wav } from "./microphone.js";
import { messagesOf } from "./store.js";
import { tell } from "./messages.js";

const PIECE = 40; // ms of sound in a piece
const LONGEST = 120_000 / PIECE; // pieces of a turn that are kept

// What was said before, as items of a conversation.
function items(messages) {
  return messages.map(({ role, content }) => {
    const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
    const made = parts.flatMap(({ type, text, image_url }) => {
      if (type === "text") return [{ type: role === "user" ? "input_text" : "output_text", text }];
      if (type === "image_url") return [{ type: "input_image", image_url: image_url.url }];
      return []; // of sound and video the words are not known
    });
    return { type: "message", role, content: made };
  }).filter((each) => each.content.length);
}

export class Talk {
  // heard: called with the request whose speech is played from now on. state: called with what goes on. ended: called when the conversation
  // is over, with an error or null.
  constructor({ model, settings, chat, player, messages, waterfall, onPiece, heard, state, ended }) {
    Object.assign(this, { model, settings, chat, player, messages, waterfall, onPiece, heard, state, ended });
    this.lines = new Map(); // what was said, by item
    this.answer = null;
    this.pieces = []; // of the user's sound
    this.gone = 0; // pieces that are no longer kept
  }

  async open() {
    this.state("connecting");
    await this.player.open();
    this.microphone = new Microphone((piece) => this.say(piece));
    await this.microphone.open();
    this.socket = realtimeSocket(this.model.id);
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = () => this.close(new Error(this.ready ? "The server has ended the conversation." : "The server refused the conversation."));
  }

  close(error = null) {
    if (this.closed) return;
    this.closed = true;
    this.socket?.close();
    this.microphone?.close();
    this.player.clear();
    this.finish();
    for (const { turn, view } of this.lines.values()) {
      if (turn.media.length) view.end();
      else view.message.remove();
    }
    this.chat.save();
    this.ended(error);
  }

  send(event) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  say(piece) {
    if (this.muted) piece.fill(0);
    this.onPiece(piece);
    if (!this.ready) return;
    this.pieces.push(piece);
    if (this.pieces.length > LONGEST) {
      this.pieces.shift();
      this.gone += 1;
    }
    this.send({ type: "input_audio_buffer.append", audio: base64Of(pcm16(piece)) });
  }

  // Sends a text in between.
  type(text) {
    this.interrupt();
    const turn = { role: "user", text, media: [] };
    this.messages.user(turn).end();
    this.chat.add(turn);
    this.request = this.waterfall.begin(text);
    if (this.responding) this.send({ type: "response.cancel" });
    this.send({ type: "conversation.item.create", item: items([{ role: "user", content: text }])[0] });
    this.send({ type: "response.create" });
    this.state("thinking");
  }

  async take(event) {
    const line = this.lines.get(event.item_id);
    switch (event.type) {
      case "session.created":
        return this.configure();
      case "session.updated":
        for (const item of items(await messagesOf(this.chat.turns))) this.send({ type: "conversation.item.create", item });
        this.ready = true;
        this.state("listening");
        break;
      case "input_audio_buffer.speech_started":
        return this.begun(event);
      case "input_audio_buffer.speech_stopped":
        return this.stopped(event, line);
      case "conversation.item.input_audio_transcription.delta":
        if (!line) break;
        line.turn.text += event.delta;
        line.view.hear(event.x_omni_tentative);
        break;
      case "conversation.item.input_audio_transcription.completed":
        if (line) this.written(line, event.transcript.trim());
        break;
      case "conversation.item.input_audio_transcription.failed":
        if (line) this.written(line, line.turn.text);
        break;
      case "response.created":
        this.responding = true;
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        if (event.item_id === this.interrupted) break;
        this.begin(event.item_id);
        this.mark("text");
        this.answer.text(event.delta);
        break;
      case "response.output_audio.delta": {
        if (event.item_id === this.interrupted) break; // it was on its way
        this.begin(event.item_id);
        this.mark("audio");
        const samples = samplesOf(event.delta);
        this.sound.push(samples);
        this.player.write(samples.slice());
        this.state("speaking");
        break;
      }
      case "response.done":
        this.responding = false;
        this.player.end();
        this.mark("end");
        if (event.response.status === "failed") this.fail(event.response.status_details?.error?.message || "The answer failed.");
        else if (!this.answer) this.state("listening");
        this.finish();
        break;
      case "error":
        this.fail(event.error.message);
        break;
    }
  }

  configure() {
    const { voice, system } = this.settings.values;
    const output = { ...(voice && { voice }), ...(this.settings.speed !== 1 && { speed: Math.min(1.5, this.settings.speed) }) };
    const input = this.model.capabilities.transcription ? { transcription: {} } : {};
    const session = { type: "realtime", output_modalities: ["audio"], audio: { input, output }, ...(system && { instructions: system }) };
    this.send({ type: "session.update", session: { ...this.settings.parameters, ...session } });
  }

  begun({ item_id, audio_start_ms }) {
    this.interrupt();
    const turn = { role: "user", text: "", spoken: true, media: [] };
    const view = this.messages.user(turn);
    view.hear("…");
    this.lines.set(item_id, { turn, view, from: audio_start_ms });
    this.state("hearing");
  }

  stopped({ audio_end_ms }, line) {
    this.state("thinking");
    this.request = this.waterfall.begin("spoken turn");
    if (!line) return;
    const first = Math.floor(line.from / PIECE) - this.gone;
    const pieces = this.pieces.slice(Math.max(0, first), Math.ceil(audio_end_ms / PIECE) - this.gone);
    if (pieces.length) line.turn.media = [{ kind: "audio", name: "what you said", blob: wav(pieces) }];
    this.chat.add(line.turn);
    if (!this.model.capabilities.transcription) this.written(line, "");
  }

  written({ turn, view }, text) {
    turn.text = text;
    if (text && this.chat.chat.title === "what you said") this.chat.chat.title = text.slice(0, 60);
    view.end();
    for (const [item, line] of this.lines) if (line.turn === turn) this.lines.delete(item);
    this.chat.save();
  }

  mark(what) {
    if (this.request) this.waterfall.mark(this.request, what);
  }

  begin(item) {
    if (this.answer) return;
    this.item = item;
    this.turn = { role: "assistant", text: "" };
    this.sound = [];
    this.chat.turns.push(this.turn);
    this.shown = this.answer = this.messages.answer(this.turn);
    this.answer.run();
    this.player.begin();
    if (this.request) this.heard(this.request);
  }

  fail(text) {
    const view = this.answer ?? this.messages.answer({ role: "assistant", text: "" });
    view.fail(text);
    if (!this.answer) view.end();
  }

  finish() {
    if (!this.answer) return;
    if (this.sound.length) this.turn.speech = wav(this.sound);
    this.answer.end();
    this.answer = null;
    tell(this.turn);
    this.chat.save();
  }

  // The user speaks: be quiet, and tell the server how much of the answer was heard.
  interrupt() {
    const { done, played } = this.player.status;
    if (this.item && !done) {
      this.player.clear();
      this.interrupted = this.item;
      this.send({ type: "conversation.item.truncate", item_id: this.item, content_index: 0, audio_end_ms: Math.floor(played * 1000) });
      this.shown.note("interrupted"); // perhaps written to its end, but not heard
    }
    this.item = null;
  }
}
