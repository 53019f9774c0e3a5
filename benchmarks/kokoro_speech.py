"""Kokoro at its released size beside the packages ``kokoro`` and ``kokoro-onnx``, in CPU seconds for a second of sound, as JSON.

    OMP_NUM_THREADS=1 python benchmarks/kokoro_speech.py [--onnx FOLDER]

Random weights, the same for both, sentences of 30 to 50 phonemes, from phonemes on. It needs what
``tests/omni_kokoro/golden/make_golden.py`` does.
``--onnx``: a folder with a released ``.onnx``, ``config.json`` and voices, which kokoro-onnx and our stage speak with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_kokoro.config import RATE, read_config
from omni_kokoro.network.model import load_network
from omni_kokoro.onnx import OnnxNetwork
from omni_kokoro.sentence import Sentence
from omni_kokoro.tiny import write_tiny_checkpoint
from omni_kokoro.voices import Voices

ROUNDS, SPEED = 2, 0.8
"""Of the voice: with these weights a phoneme has about 25 to 50 ms."""

LENGTHS = (30, 50, 40, 35, 45, 32, 42, 38)
FIRST = 30
"""Phonemes of a short first piece, of a text of 150, which the package speaks at once."""


def taken(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def beside_package(folder: Path) -> dict[str, Any]:
    """Compare with the package ``kokoro``, in turn."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/omni_kokoro/golden"))
    from make_golden import published

    theirs = (
        published().KModel("hexgrad/Kokoro-82M", str(folder / "config.json"), str(folder / "kokoro-v1_0.pth")).eval()
    )
    ours, voices = load_network(folder, "kokoro-v1_0.pth"), Voices(folder)
    draw = np.random.default_rng(0)
    style = voices.style(voices.named(None), 80)

    def sentence(length: int) -> Sentence:
        return Sentence(draw.integers(1, 100, length).tolist(), style, SPEED)

    def package(each: Sentence) -> Any:
        ids = torch.tensor([[0, *each.ids, 0]])
        return theirs.forward_with_tokens(ids, torch.from_numpy(style)[None], SPEED)[0]

    eight, text = [sentence(length) for length in LENGTHS], sentence(150)
    first = Sentence(text.ids[:FIRST], style, SPEED)
    package(first), ours.speak([first])
    rows: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        one = taken(lambda: package(eight[1]))
        own = taken(lambda: ours.speak([eight[1]]))
        several = taken(lambda: [package(each) for each in eight])
        alone = taken(lambda: [ours.speak([each]) for each in eight])
        together = taken(lambda: ours.speak(eight))
        late, soon = taken(lambda: package(text)), taken(lambda: ours.speak([first]))
        seconds = sum(len(each.samples) for each in together[1]) / RATE
        rows.append(
            {
                "one": one[0] / (len(one[1]) / RATE),
                "ours one": own[0] / (len(own[1][0].samples) / RATE),
                "eight": several[0] / seconds,
                "ours eight": alone[0] / seconds,
                "ours eight together": together[0] / seconds,
                "first sound": late[0],
                "ours first sound": soon[0],
            }
        )
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def beside_onnx(folder: Path) -> dict[str, Any]:
    """Compare with the package ``kokoro-onnx`` on one file, in turn."""
    import onnxruntime
    from kokoro_onnx import Kokoro

    file = next(each.name for each in folder.glob("*.onnx"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
    theirs = Kokoro.from_session(session, str(next(folder.glob("*.npz"))), vocab_config=str(folder / "config.json"))
    ours, voices, vocabulary = OnnxNetwork(folder, file), Voices(folder), read_config(folder).vocabulary
    name, phonemes = next(iter(voices.tables)), "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˌOvəɹ ðə lˈAzi dˈɑɡ, ænd ðə sˈi wʌz kˈɑm."
    sentence = Sentence([vocabulary[each] for each in phonemes], voices.tables[name][len(phonemes) - 1])
    rows: list[dict[str, float]] = []
    for _ in range(ROUNDS + 1):
        one = taken(lambda: theirs.create(phonemes, name, is_phonemes=True, trim=False))
        own = taken(lambda: ours.speak([sentence]))
        rows.append({"one": one[0] / (len(one[1][0]) / RATE), "ours one": own[0] / (len(own[1][0].samples) / RATE)})
    return {each: round(statistics.median(row[each] for row in rows[1:]), 3) for each in rows[0]}


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--onnx", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    if given.onnx:
        found["kokoro-onnx"] = beside_onnx(given.onnx)
    with tempfile.TemporaryDirectory() as folder:
        found["kokoro"] = beside_package(write_tiny_checkpoint(folder, changes={}))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
