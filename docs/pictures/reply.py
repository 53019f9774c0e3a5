"""Makes docs/pictures/reply.wav with the demo, and a picture of its sound: ``python docs/pictures/reply.py``.

Needs omni-demo, matplotlib, Pillow and soundfile.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import matplotlib as mpl
import numpy as np
import soundfile
from PIL import Image

HERE = Path(__file__).parent
COMMAND = ["omni", "run", "demo", "--text", "What is your name?", "--seed", "1", "--out", str(HERE / "reply.wav")]


def draw(samples: np.ndarray, rate: int, path: Path) -> None:
    """The waveform above, the spectrogram below, in colours that are legible on light and on dark pages."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    gray = "#7b8794"
    plt.rcParams.update(
        {"font.size": 9, "text.color": gray, "axes.labelcolor": gray, "xtick.color": gray, "ytick.color": gray}
    )
    figure, (wave, sound) = plt.subplots(
        2, 1, figsize=(8, 2.9), height_ratios=[1, 2], sharex=True, layout="constrained", facecolor="none"
    )
    seconds = np.arange(len(samples)) / rate
    wave.plot(seconds, samples, color="#5b7fd8", linewidth=0.5)
    wave.axis("off")
    sound.specgram(samples, NFFT=512, noverlap=400, Fs=rate, cmap="magma", vmin=-130)
    sound.set(ylim=(0, 8000), xlabel="seconds", ylabel="kHz", xlim=(0, seconds[-1]))
    sound.set_yticks([0, 2000, 4000, 6000, 8000], ["0", "2", "4", "6", "8"])
    for side in sound.spines.values():
        side.set_visible(False)
    figure.savefig(path, dpi=130, transparent=True)
    Image.open(path).quantize(128).save(path, optimize=True)


def main() -> None:
    subprocess.run(COMMAND, check=True)
    draw(*soundfile.read(HERE / "reply.wav"), HERE / "spectrogram.png")


if __name__ == "__main__":
    main()
