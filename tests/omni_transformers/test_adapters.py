"""Models that other distributions add: the one in ``examples/``, found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_transformers import byte_tokenizer
from tiny_transformers.driving import replies, running, say
from transformers import LlamaConfig, LlamaForCausalLM

from omni_core.api import ConfigError, load_plugins
from omni_transformers.pipeline import interface, transformers
from omni_transformers.speak.stage import create_speaker

EXAMPLE = Path(__file__).parents[2] / "examples" / "omni-codec-llama" / "src"
VOICES = ["tara", "leo"]


def _installed(where: Path, name: str) -> None:
    """Install the example's plugin under a name."""
    folder = where / f"{name.replace('-', '_')}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text(f"[omni]\n{name} = codec_llama.plugin [transformers-adapters-1]\n")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example as an installed distribution; the folder to install more."""
    where = tmp_path / "packages"
    _installed(where, "codec-llama")
    monkeypatch.syspath_prepend(str(where))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    load_plugins.cache_clear()
    yield where
    load_plugins.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the example."""
    from codec_llama.speaker import Codec

    torch.manual_seed(0)
    path = tmp_path / "model"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=259 + 7 * 16, initializer_range=0.3, **sizes))
    with torch.no_grad():  # the end is never likely
        model.lm_head.weight[258] = 0.0
    model.save_pretrained(path)
    byte_tokenizer(template=None).save_pretrained(path)
    codec = Codec(16, 4, 8)
    save_file(codec.state_dict(), path / "codec.safetensors")
    config = json.loads((path / "config.json").read_text())
    codes = {
        "sample_rate": 8000,
        "voices": VOICES,
        "size": 16,
        "width": 4,
        "hop": 8,
        "first_token": 259,
        "end_token": 258,
    }
    (path / "config.json").write_text(json.dumps({**config, "speech_codes": codes}))
    return path


def test_an_adapter_claims_a_checkpoint_of_another_architecture(example: Path, folder: Path) -> None:
    offered = interface(str(folder))
    assert (offered.outputs, offered.sample_rate, offered.voices) == (["audio"], 8000, VOICES)
    [stage] = transformers(str(folder)).stages
    assert stage.factory_args["speaker"] == "codec_llama.speaker:CodecLlama"
    with running(create_speaker(str(folder), **stage.factory_args)) as scheduler:
        asked = [
            say(text, speech={"seed": 1, "temperature": 0.3, "max_new_tokens": 140})
            for text in ("Hello", "How are you?")
        ]
        alone = [replies(scheduler, [each])[0] for each in asked]
        together = replies(scheduler, asked)
    for (streamed, result), (_, beside) in zip(alone, together, strict=True):
        assert len(streamed) > 1
        np.testing.assert_array_equal(np.concatenate([each.samples for each in streamed]), result.samples)
        np.testing.assert_array_equal(result.samples, beside.samples)
    assert alone[0][1].samples.tobytes() != alone[1][1].samples.tobytes()


def test_without_it_the_checkpoint_writes_text(example: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_DISABLE_PLUGINS", "codec-llama")
    load_plugins.cache_clear()
    assert interface(str(folder)).outputs == ["text"]


def test_an_architecture_that_transformers_lacks_can_be_an_adapters(example: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unheard"], "model_type": "unheard"}))
    with pytest.raises(ConfigError, match="Unheard neither speaks"):
        interface(str(tmp_path))


def test_two_adapters_for_one_checkpoint_are_an_error(example: Path, folder: Path) -> None:
    _installed(example, "codec-llama-2")
    load_plugins.cache_clear()
    with pytest.raises(ConfigError, match=r"two adapters claim.*codec-llama.*codec-llama-2.*OMNI_DISABLE_PLUGINS"):
        interface(str(folder))


def test_offers_are_read_without_torch(example: Path, folder: Path) -> None:
    program = (
        "import sys; from omni_transformers.pipeline import interface; print(interface(sys.argv[1]).sample_rate);"
        "print(*{'torch', 'transformers'} & set(sys.modules))"
    )
    paths = os.pathsep.join([*map(str, (example, EXAMPLE)), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert ran.stdout.split() == ["8000"]
