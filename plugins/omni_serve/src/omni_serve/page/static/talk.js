// Converses by voice over /v1/realtime: the server finds the turns, and speaking interrupts the answer.

import { base64Of, pcm16, realtimeSocket, samplesOf } from "./api.js";
import { Microphone } from "./microphone.js";

const SPEAKING = "speaking …";

export class Talk {
  // heard: called with the request whose speech is played from now on. ended: called when the conversation is over, with an error or null.
  constructor({ model, voice, player, messages, waterfall, onPiece, heard, ended }) {
    Object.assign(this, { model, voice, player, messages, waterfall, onPiece, heard, ended });
    this.lines = new Map(); // what was said, by item
    this.answer = null;
  }

  async open() {
    await this.player.open();
    this.microphone = new Microphone((piece) => this.say(piece));
    await this.microphone.open();
    this.socket = realtimeSocket(this.model);
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = () => this.close(this.ready ? null : new Error("The server refused the conversation."));
  }

  close(error = null) {
    if (this.closed) return;
    this.closed = true;
    this.socket?.close();
    this.microphone?.close();
    this.player.clear();
    this.finish();
    for (const message of this.lines.values()) if (message.innerText === SPEAKING) message.remove();
    this.ended(error);
  }

  send(event) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  say(piece) {
    this.onPiece(piece);
    if (this.ready) this.send({ type: "input_audio_buffer.append", audio: base64Of(pcm16(piece)) });
  }

  take(event) {
    switch (event.type) {
      case "session.created": {
        const audio = this.voice ? { output: { voice: this.voice } } : {};
        this.send({ type: "session.update", session: { type: "realtime", output_modalities: ["audio"], audio } });
        break;
      }
      case "session.updated":
        this.ready = true;
        break;
      case "input_audio_buffer.speech_started":
        this.interrupt();
        this.lines.set(event.item_id, this.messages.user(SPEAKING));
        break;
      case "input_audio_buffer.speech_stopped":
        this.line(event.item_id, "(spoken)");
        this.request = this.waterfall.begin("spoken turn");
        break;
      case "conversation.item.input_audio_transcription.completed":
        this.line(event.item_id, event.transcript);
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        if (event.item_id === this.interrupted) break;
        this.begin(event.item_id);
        this.mark("text");
        this.answer.text(event.delta);
        break;
      case "response.output_audio.delta":
        if (event.item_id === this.interrupted) break; // it was on its way
        this.begin(event.item_id);
        this.mark("audio");
        this.player.write(samplesOf(event.delta));
        break;
      case "response.done":
        this.player.end();
        this.mark("end");
        if (event.response.status === "failed") {
          this.messages.answer().fail(event.response.status_details?.error?.message || "The answer failed.");
        }
        this.finish();
        break;
      case "error":
        this.messages.answer().fail(event.error.message);
        break;
    }
  }

  line(item, text) {
    const message = this.lines.get(item);
    if (message) message.querySelector("p").textContent = text;
  }

  mark(what) {
    if (this.request) this.waterfall.mark(this.request, what);
  }

  begin(item) {
    if (this.answer) return;
    this.item = item;
    this.shown = this.answer = this.messages.answer();
    this.player.begin();
    if (this.request) this.heard(this.request);
  }

  finish() {
    this.answer?.end();
    this.answer = null;
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
