"""Checkpoints: the tiny one is complete and repeatable; errors in one are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiers import few
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from omni_core.errors import ConfigError
from omni_qwen3.checkpoint import Checkpoint
from omni_qwen3.config import parse_config, read_config
from omni_qwen3.thinker_network import load_thinker
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_testing.tiny.qwen3_tokenizer import SPECIAL_TOKENS


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(tiny: dict[str, Path], tmp_path: Path) -> None:
    assert contents(write_tiny_checkpoint(tmp_path / "again", shape="a")) == contents(tiny["a"])
    other = contents(write_tiny_checkpoint(tmp_path / "other", shape="a", seed=1))
    assert other["config.json"] == contents(tiny["a"])["config.json"]
    assert other["model-00001-of-00004.safetensors"] != contents(tiny["a"])["model-00001-of-00004.safetensors"]


@pytest.mark.parametrize("shape", few("abc", 2))
def test_transformers_loads_it_completely(tiny: dict[str, Path], shape: str) -> None:
    _, report = Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny[shape], output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(path.stat().st_size for path in tiny[shape].iterdir()) < 12 * 2**20


def test_the_tokenizer_has_the_released_structure(tiny: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny["a"])
    ids = tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS)
    assert ids == list(range(ids[0], ids[0] + len(SPECIAL_TOKENS)))
    assert type(tokenizer).__name__.startswith("Qwen2Tokenizer")
    for role in ("system", "user", "assistant", "\n"):
        assert len(tokenizer.encode(role)) == 1, role
    text = "Grüße, 世界 🦊!"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_existing_checkpoint_is_never_overwritten(tiny: dict[str, Path]) -> None:
    with pytest.raises(FileExistsError, match="another folder"):
        write_tiny_checkpoint(tiny["a"])
    with pytest.raises(ValueError, match="unknown shape"):
        write_tiny_checkpoint(tiny["a"], shape="z")


@pytest.fixture
def copy(tiny: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny["a"], tmp_path / "copy")


def shard_of(folder: Path, name: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][name]


NORM = "thinker.model.norm.weight"


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard = shard_of(copy, NORM)
    shard.unlink()
    with pytest.raises(ConfigError, match=rf"{shard.name} is missing"):
        load_thinker(str(copy), read_config(copy))


def test_a_missing_tensor_is_named(copy: Path) -> None:
    shard = shard_of(copy, NORM)
    tensors = load_file(shard)
    del tensors[NORM]
    save_file(tensors, shard)
    with pytest.raises(ConfigError, match=rf"{shard.name} lacks the tensor '{NORM}'"):
        load_thinker(str(copy), read_config(copy))


@pytest.mark.parametrize(
    "name",
    [NORM, "thinker.model.layers.0.mlp.experts.1.up_proj.weight", "thinker.model.layers.0.self_attn.k_proj.weight"],
)
def test_a_wrong_shape_is_named_with_both_shapes(copy: Path, name: str) -> None:
    shard = shard_of(copy, name)
    tensors = load_file(shard)
    tensors[name] = torch.zeros(5, *tensors[name].shape[1:])
    save_file(tensors, shard)
    with pytest.raises(ConfigError) as caught:
        load_thinker(str(copy), read_config(copy))
    assert name in str(caught.value)
    assert "the config asks for" in str(caught.value)


def test_a_damaged_shard_is_named(copy: Path) -> None:
    shard = shard_of(copy, NORM)
    shard.write_bytes(b"not safetensors")
    with pytest.raises(ConfigError, match=rf"{shard.name} cannot be read"):
        load_thinker(str(copy), read_config(copy))


def test_a_config_that_lacks_something_is_named(copy: Path) -> None:
    raw = read_config(copy).raw
    del raw["talker_config"]["text_config"]["num_attention_heads"]
    with pytest.raises(ConfigError, match=r"config\.json\.talker_config\.text_config\.num_attention_heads: missing"):
        parse_config(raw)
    (copy / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        read_config(copy)


def test_only_the_rows_asked_for_are_read(tiny: dict[str, Path]) -> None:
    checkpoint = Checkpoint(tiny["a"])
    name = "thinker.model.embed_tokens.weight"
    assert torch.equal(checkpoint.read_rows(name, [5, 2]), checkpoint.read([name])[name][[5, 2]])
