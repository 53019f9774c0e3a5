// Hands on the microphone's samples in pieces of 40 ms, at the rate that is asked for.

class Microphone extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.step = sampleRate / processorOptions.rate;
    this.piece = new Float32Array(processorOptions.rate / 25);
    this.filled = 0;
    this.position = this.sum = this.number = 0;
  }

  process([[input]]) {
    if (!input) return true;
    for (const sample of input) {
      if (this.step === 1) this.put(sample);
      else {
        // The mean of the samples that fall into one of ours: enough of a low pass for speech.
        this.sum += sample;
        this.number += 1;
        this.position += 1;
        while (this.position >= this.step) {
          this.position -= this.step;
          this.put(this.number ? this.sum / this.number : sample);
          this.sum = this.number = 0;
        }
      }
    }
    return true;
  }

  put(sample) {
    this.piece[this.filled++] = sample;
    if (this.filled === this.piece.length) {
      this.port.postMessage(this.piece.slice());
      this.filled = 0;
    }
  }
}

registerProcessor("microphone", Microphone);
