"""Checkpoints: the tiny one is complete and repeatable; errors in one are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiers import few
from tokenizers import Tokenizer

from omni_core.errors import ConfigError
from omni_fish_s2.config import parse_config, read_config
from omni_fish_s2.prompt import PromptBuilder
from omni_fish_s2.slow import load_decoders
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint
from omni_testing.tiny.fish_s2_tokenizer import MARKERS


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(tiny: dict[str, Path], tmp_path: Path) -> None:
    assert contents(write_tiny_checkpoint(tmp_path / "again", shape="a")) == contents(tiny["a"])
    other = contents(write_tiny_checkpoint(tmp_path / "other", shape="a", seed=1))
    assert other["config.json"] == contents(tiny["a"])["config.json"]
    assert other["model-00001-of-00002.safetensors"] != contents(tiny["a"])["model-00001-of-00002.safetensors"]
    assert other["codec.pth"] != contents(tiny["a"])["codec.pth"]


@pytest.mark.parametrize("shape", few("abc", 2))
def test_it_is_small(tiny: dict[str, Path], shape: str) -> None:
    assert sum(path.stat().st_size for path in tiny[shape].iterdir()) < 8 * 2**20


def test_the_tokenizer_has_the_released_structure(tiny: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(tiny["a"] / "tokenizer.json"))
    config = read_config(tiny["a"])
    ids = [tokenizer.token_to_id(name) for name in MARKERS]
    assert ids == list(range(ids[0], ids[0] + len(MARKERS)))
    assert config.semantic_begin == ids[-1] + 1
    assert tokenizer.token_to_id("<|semantic:255|>") == config.semantic_end
    assert tokenizer.token_to_id("<|speaker:0|>") is None
    text = "Grüße, 世界 🦊!"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture
def copy(tiny: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny["b"], tmp_path / "copy")


def shard_of(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][name]


def load(folder: Path) -> None:
    load_decoders(str(folder), read_config(folder))


NORM = "text_model.model.norm.weight"
KEYS = "text_model.model.layers.0.attention.wk.weight"
GATE = "audio_decoder.layers.1.feed_forward.w1.weight"


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard = shard_of(copy, NORM)
    shard.unlink()
    with pytest.raises(ConfigError, match=rf"{shard.name} is missing"):
        load(copy)


@pytest.mark.parametrize("name", [NORM, KEYS, GATE])
def test_a_missing_tensor_is_named(copy: Path, name: str) -> None:
    shard = shard_of(copy, name)
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard)
    with pytest.raises(ConfigError, match=rf"{shard.name} lacks the tensor '{name}'"):
        load(copy)


@pytest.mark.parametrize("name", [NORM, KEYS, GATE])
def test_a_wrong_shape_is_named_with_both_shapes(copy: Path, name: str) -> None:
    shard = shard_of(copy, name)
    tensors = load_file(shard)
    tensors[name] = torch.zeros(5, *tensors[name].shape[1:])
    save_file(tensors, shard)
    with pytest.raises(ConfigError) as caught:
        load(copy)
    assert name in str(caught.value)
    assert "the config asks for" in str(caught.value)


def test_one_file_of_weights_is_enough(copy: Path) -> None:
    tensors = {}
    for shard in copy.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (copy / "model.safetensors.index.json").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        load(copy)
    save_file(tensors, copy / "model.safetensors")
    load(copy)
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        load(copy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw["text_config"].pop("n_head"), r"config\.json\.text_config\.n_head: missing"),
        (lambda raw: raw.pop("audio_decoder_config"), r"config\.json\.audio_decoder_config: missing"),
        (lambda raw: raw.update(text_config=3), r"text_config: must be an object"),
        (lambda raw: raw.update(model_type="llama"), r"model_type: must be 'fish_qwen3_omni', is 'llama'"),
        (
            lambda raw: raw.update(semantic_end_token_id=9999),
            r"semantic_end_token_id: must be a whole number from 0 to",
        ),
        (
            lambda raw: raw.update(semantic_end_token_id=raw["semantic_start_token_id"]),
            r"1 semantic tokens .* for 192 codes",
        ),
        (
            lambda raw: raw["text_config"].update(dim=-1),
            r"text_config\.dim: must be a whole number from 1 to \d+, is -1",
        ),
        (lambda raw: raw["text_config"].update(dim="64"), r"text_config\.dim: .* is '64'"),
        (lambda raw: raw["text_config"].update(n_layer=10**6), r"n_layer: must be a whole number from 1 to 1024"),
        (lambda raw: raw["text_config"].update(n_head=0), r"n_head: must be a whole number from 1 to 1024, is 0"),
        (
            lambda raw: raw["text_config"].update(n_head=4, n_local_heads=3),
            r"n_local_heads: must be a divisor of n_head",
        ),
        (lambda raw: raw["text_config"].update(head_dim=7), r"head_dim: must be an even number, is 7"),
        (lambda raw: raw["text_config"].update(rope_base=0), r"rope_base: must be a number from 1 to"),
        (lambda raw: raw["text_config"].update(max_seq_len=2**60), r"max_seq_len: must be a whole number"),
        (lambda raw: raw["text_config"].update(attention_qk_norm=1), r"attention_qk_norm: must be true or false, is 1"),
        (lambda raw: raw["audio_decoder_config"].update(n_layer=-3), r"audio_decoder_config\.n_layer"),
        (lambda raw: raw["audio_decoder_config"].update(num_codebooks=1.5), r"num_codebooks: .* is 1\.5"),
    ],
)
def test_a_config_that_is_wrong_is_named(copy: Path, change: Any, words: str) -> None:
    raw = json.loads((copy / "config.json").read_text())
    change(raw)
    with pytest.raises(ConfigError, match=words):
        parse_config(raw)


def test_a_tokenizer_that_does_not_fit_is_named(copy: Path, tiny: dict[str, Path]) -> None:
    shutil.copy(tiny["c"] / "tokenizer.json", copy / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"the id of <\|im_end\|> is \d+, config\.json says \d+"):
        PromptBuilder(str(copy), read_config(copy))
    (copy / "tokenizer.json").write_bytes(b"\x00\xff" * 99)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        PromptBuilder(str(copy), read_config(copy))
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        PromptBuilder(str(copy), read_config(copy))
