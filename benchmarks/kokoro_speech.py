"""Kokoro at its released size beside the packages ``kokoro`` and ``kokoro-onnx``, in CPU seconds for a second of sound.

    OMP_NUM_THREADS=1 python benchmarks/kokoro_speech.py [--quick] [--json FILE] [--onnx FOLDER]

Random weights, the same for both, sentences of 30 to 50 phonemes, from phonemes on. It needs what
``tests/omni_kokoro/golden/make_golden.py`` does; without that, and without ``--onnx``, a comparison is left out, and named.
``--onnx``: a folder with a released ``.onnx``, ``config.json`` and voices, which kokoro-onnx and our stage speak with.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from report import Row, compare, json_option, publish, quick_option

from omni_kokoro.config import read_config
from omni_kokoro.interface import RATE
from omni_kokoro.network.model import load_network
from omni_kokoro.onnx import OnnxNetwork
from omni_kokoro.sentence import Sentence
from omni_kokoro.tiny import write_tiny_checkpoint
from omni_kokoro.voices import Voices

SPEED = 0.8
"""Of the voice: with these weights a phoneme has about 25 to 50 ms."""

_UNIT = "CPU seconds for a second of sound"

LENGTHS = (30, 50, 40, 35, 45, 32, 42, 38)
FIRST = 30
"""Phonemes of a short first piece, of a text of 160, which the package speaks at once."""


def taken(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def beside_package(folder: Path, rounds: int, count: int, speed: float = SPEED) -> list[Row]:
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
        return Sentence(draw.integers(1, 100, length).tolist(), style, speed)

    def package(each: Sentence) -> Any:
        ids = torch.tensor([[0, *each.ids, 0]])
        return theirs.forward_with_tokens(ids, torch.from_numpy(style)[None], speed)[0]

    eight, text = [sentence(length) for length in LENGTHS[:count]], sentence(20 * count)
    first = Sentence(text.ids[:FIRST], style, speed)
    package(first), ours.speak([first])
    rows: list[dict[str, float]] = []
    for _ in range(rounds):
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
    return [
        _row("Kokoro, one sentence", "ours one", "one", rows, "kokoro"),
        _row(f"Kokoro, {count} sentences one by one", "ours eight", "eight", rows, "kokoro"),
        _row(f"Kokoro, {count} sentences in one pass", "ours eight together", "eight", rows, "kokoro"),
        _row(
            f"Kokoro, first sound of {20 * count} phonemes",
            "ours first sound",
            "first sound",
            rows,
            "kokoro",
            "CPU seconds",
        ),
    ]


def _row(name: str, ours: str, theirs: str, rows: list[dict[str, float]], other: str, unit: str = _UNIT) -> Row:
    own, its = [each[ours] for each in rows], [each[theirs] for each in rows]
    return compare(name, unit, own, its, other, higher_is_better=False)


def beside_onnx(folder: Path, rounds: int) -> list[Row]:
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
    for _ in range(rounds + 1):
        one = taken(lambda: theirs.create(phonemes, name, is_phonemes=True, trim=False))
        own = taken(lambda: ours.speak([sentence]))
        rows.append({"one": one[0] / (len(one[1][0]) / RATE), "ours one": own[0] / (len(own[1][0].samples) / RATE)})
    return [_row("Kokoro, its int8 file", "ours one", "one", rows[1:], "kokoro-onnx")]


@click.command()
@quick_option
@json_option
@click.option(
    "--onnx", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A folder with a released file."
)
def main(quick: bool, json_path: Path | None, onnx: Path | None) -> None:
    """Compare Kokoro with its packages."""
    torch.set_num_threads(1)
    rounds, rows = (1 if quick else 3), list[Row]()
    if onnx is None:
        click.echo("kokoro-onnx is left out: give a folder with a released file (--onnx)")
    else:
        rows += beside_onnx(onnx, rounds)
    if importlib.util.find_spec("kokoro") is None:
        click.echo("kokoro is left out: it is not installed")
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows += beside_package(write_tiny_checkpoint(folder, changes={}), rounds, *((2, 4.0) if quick else (8,)))
    if rows:
        publish(rows, json_path)


if __name__ == "__main__":
    main()
