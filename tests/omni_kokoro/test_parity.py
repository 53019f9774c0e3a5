"""The network equals the published one; see golden/make_golden.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.api import ConfigError
from omni_kokoro.config import read_config
from omni_kokoro.network.model import Kokoro, folded, load_network, stored
from omni_kokoro.sentence import Sentence
from omni_kokoro.tiny import config, write_tiny_checkpoint
from omni_kokoro.voices import Voices

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))

FEW = 0.05
"""Of the samples. There are none on the processor that wrote the answers; elsewhere roundings let a phase jump from pi to -pi."""


def sentences(folder: Path) -> list[Sentence]:
    given = read_config(folder)
    voices, vocabulary = Voices(folder, width=2 * given.style), given.vocabulary
    return [
        Sentence(
            [vocabulary[each] for each in case["phonemes"]],
            voices.style(voices.named(case["voice"]), len(case["phonemes"])),
            case["speed"],
            case["seed"],
        )
        for case in CASES["sentences"]
    ]


@pytest.mark.parametrize("shape", CASES["shapes"])
def test_the_sound_equals_that_of_the_published_network(shape: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, changes=CASES["shapes"][shape])
    network, asked = load_network(folder, "kokoro-v1_0.pth"), sentences(folder)
    together = network.speak(asked)
    with np.load(GOLDEN / f"{shape}.npz") as answers:
        for number, spoken in enumerate(together):
            assert spoken.durations.tolist() == answers[f"durations{number}"].tolist()
            assert spoken.samples.std() > 0.02
            off = np.abs(spoken.samples - answers[f"sound{number}"].clip(-1, 1)) > 1e-4
            assert off.mean() < FEW


def test_a_sentence_sounds_alone_as_it_does_beside_others(tiny: Path) -> None:
    network, asked = load_network(tiny, "kokoro-v1_0.pth"), sentences(tiny)
    together = network.speak([*asked, asked[0]])
    for sentence, spoken in zip([*asked, asked[0]], together, strict=True):
        np.testing.assert_allclose(network.speak([sentence])[0].samples, spoken.samples, atol=1e-5)
    other = Sentence(asked[0].ids, asked[0].style, asked[0].speed, seed=1)
    assert not np.allclose(network.speak([other])[0].samples, together[0].samples, atol=1e-4)


def test_every_published_tensor_has_its_place_and_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    shapes = json.loads((GOLDEN / "shapes.json").read_text())
    with torch.device("meta"):
        tensors = folded({name: torch.empty(shape) for name, shape in shapes.items()})
        network = Kokoro(read_config(tmp_path))
    ours = {name: list(each.shape) for name, each in network.named_parameters()}
    unused = {"bert.pooler.weight", "bert.pooler.bias"}
    unused |= {name for name in tensors if name.endswith(("position_ids", "token_type_ids"))}
    assert ours == {name: list(each.shape) for name, each in tensors.items() if name not in unused}


def test_safetensors_and_names_without_a_prefix_are_read_too(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: each.contiguous() for name, each in folded(stored(tiny / "kokoro-v1_0.pth")).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    one, other = load_network(tiny, "kokoro-v1_0.pth"), load_network(tmp_path, "model.safetensors")
    assert all(torch.equal(each, other.state_dict()[name]) for name, each in one.state_dict().items())


def _drop(parts: Any) -> None:
    del parts["decoder"]["module.generator.conv_post.bias"]


def _widen(parts: Any) -> None:
    parts["bert_encoder"]["module.weight"] = torch.zeros(3, 5)


@pytest.mark.parametrize(
    ("change", "message"), [(_drop, "has no decoder.generator.conv_post.bias"), (_widen, r"\[3, 5\]")]
)
def test_weights_of_something_else_are_refused(tiny: Path, tmp_path: Path, change: Any, message: str) -> None:
    parts = torch.load(tiny / "kokoro-v1_0.pth", weights_only=True)
    change(parts)
    torch.save(parts, tmp_path / "x.pth")
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(ConfigError, match=message):
        load_network(tmp_path, "x.pth")
