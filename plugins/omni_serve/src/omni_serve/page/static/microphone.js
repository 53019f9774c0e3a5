// Records the microphone as mono samples at 24 kHz.

import { pcm16 } from "./api.js";
import { RATE } from "./player.js";

export class Microphone {
  // take: called with each piece of 40 ms.
  constructor(take) {
    this.take = take;
  }

  async open() {
    if (!navigator.mediaDevices) throw new Error("The microphone needs https, or a page at localhost.");
    this.stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
    this.context = new AudioContext({ sampleRate: RATE });
    let source;
    try {
      source = this.context.createMediaStreamSource(this.stream);
    } catch {
      // Firefox does not change the rate of a microphone; the worklet does.
      await this.context.close();
      this.context = new AudioContext();
      source = this.context.createMediaStreamSource(this.stream);
    }
    await this.context.audioWorklet.addModule("page/microphone-worklet.js");
    const node = new AudioWorkletNode(this.context, "microphone", { numberOfOutputs: 0, processorOptions: { rate: RATE } });
    node.port.onmessage = ({ data }) => this.take(data);
    source.connect(node);
    await this.context.resume();
  }

  async close() {
    this.stream?.getTracks().forEach((track) => track.stop());
    if (this.context && this.context.state !== "closed") await this.context.close();
  }
}

// Returns a WAV file of pieces of samples.
export function wav(pieces) {
  const count = pieces.reduce((sum, each) => sum + each.length, 0);
  const samples = new Float32Array(count);
  let at = 0;
  for (const piece of pieces) {
    samples.set(piece, at);
    at += piece.length;
  }
  const head = new DataView(new ArrayBuffer(44));
  const text = (offset, value) => [...value].forEach((each, index) => head.setUint8(offset + index, each.charCodeAt(0)));
  text(0, "RIFF");
  head.setUint32(4, 36 + 2 * count, true);
  text(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, RATE, true);
  head.setUint32(28, 2 * RATE, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  text(36, "data");
  head.setUint32(40, 2 * count, true);
  return new Blob([head.buffer, pcm16(samples)], { type: "audio/wav" });
}

// Draws how loud it is; returns a function that takes pieces.
export function meter(canvas) {
  const loud = new Array(45).fill(0);
  const draw = canvas.getContext("2d");
  const step = canvas.width / loud.length;
  return (piece) => {
    loud.push(Math.sqrt(piece.reduce((sum, each) => sum + each * each, 0) / piece.length));
    loud.shift();
    draw.clearRect(0, 0, canvas.width, canvas.height);
    draw.fillStyle = getComputedStyle(canvas).color;
    draw.beginPath();
    loud.forEach((each, index) => {
      const height = Math.max(0.5 * step, Math.min(1, each * 6) * canvas.height);
      draw.roundRect((index + 0.25) * step, (canvas.height - height) / 2, 0.5 * step, height, 0.25 * step);
    });
    draw.fill();
  };
}
