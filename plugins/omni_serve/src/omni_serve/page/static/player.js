// Plays speech as it arrives, without gaps, and counts where it came too late.

export const RATE = 24000;

export class Player {
  // changed: called with what the worklet reports.
  constructor(changed) {
    this.changed = changed;
    this.status = { played: 0, buffered: 0, underruns: 0, playing: false, done: true };
    this.before = 0; // underruns of earlier answers
  }

  // To be called when the user does something: browsers do not let a page play by itself.
  async open() {
    if (!this.opening) {
      this.context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
      this.opening = this.context.audioWorklet.addModule("page/player-worklet.js").then(() => {
        this.node = new AudioWorkletNode(this.context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
        this.node.port.onmessage = ({ data }) => {
          this.status = data;
          this.changed(data, this.before + data.underruns);
        };
        this.node.connect(this.context.destination);
      });
    }
    await this.opening;
    if (this.context.state !== "running") await this.context.resume();
  }

  begin() {
    this.before += this.status.underruns;
    this.status = { ...this.status, played: 0, underruns: 0, done: false };
    this.node.port.postMessage({ begin: true });
  }

  write(samples) {
    this.node?.port.postMessage({ samples }, [samples.buffer]);
  }

  end() {
    this.node?.port.postMessage({ end: true });
  }

  clear() {
    this.node?.port.postMessage({ clear: true });
  }
}
