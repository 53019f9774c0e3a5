// Plays samples from a ring buffer that grows. It starts, and starts again after an underrun, when some sound is there.

const AHEAD = 0.12; // seconds
const REPORT = 2400; // frames between reports

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new Float32Array(1 << 17);
    this.read = this.count = this.played = this.underruns = this.quiet = 0;
    this.playing = false;
    this.ended = true;
    this.since = 0;
    this.port.onmessage = ({ data }) => this.take(data);
  }

  take(message) {
    if (message.samples) this.write(message.samples);
    if (message.end) this.ended = true;
    if (message.clear || message.begin) {
      this.count = 0;
      this.playing = false;
      this.ended = !message.begin;
    }
    if (message.begin) this.played = this.underruns = 0;
    this.report();
  }

  write(samples) {
    if (this.count + samples.length > this.ring.length) {
      const larger = new Float32Array(2 * (this.count + samples.length));
      for (let index = 0; index < this.count; index++) larger[index] = this.ring[(this.read + index) % this.ring.length];
      this.ring = larger;
      this.read = 0;
    }
    const at = (this.read + this.count) % this.ring.length;
    const first = Math.min(samples.length, this.ring.length - at);
    this.ring.set(samples.subarray(0, first), at);
    this.ring.set(samples.subarray(first), 0);
    this.count += samples.length;
  }

  process(_, [[output]]) {
    if (!this.playing && this.count > 0 && (this.ended || this.count >= AHEAD * sampleRate)) this.playing = true;
    if (this.playing) {
      const some = Math.min(output.length, this.count);
      for (let index = 0; index < some; index++) output[index] = this.ring[(this.read + index) % this.ring.length];
      this.read = (this.read + some) % this.ring.length;
      this.count -= some;
      this.played += some;
      if (this.count === 0 && (this.ended || some < output.length)) {
        if (!this.ended) this.underruns += 1;
        this.playing = false;
        this.report();
      }
    }
    this.since += output.length;
    if (this.since >= REPORT && this.playing) this.report();
    return true;
  }

  report() {
    this.since = 0;
    this.port.postMessage({
      played: this.played / sampleRate,
      buffered: this.count / sampleRate,
      underruns: this.underruns,
      playing: this.playing,
      done: this.ended && this.count === 0,
    });
  }
}

registerProcessor("player", Player);
