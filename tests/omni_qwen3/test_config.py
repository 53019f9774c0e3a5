"""A checkpoint's config: a value that is out of range or not implemented is named before anything is allocated."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from released import RELEASED

from omni_core.errors import ConfigError
from omni_qwen3.config import parse_config, read_config
from omni_qwen3.decode import create_decode
from omni_qwen3.encoders import create_image_encoder
from omni_qwen3.preprocessing import create_preprocessing
from omni_qwen3.sharding import local_config
from omni_qwen3.thinker import load_thinker
from omni_torch.processes.tensor_parallel import ALONE, TensorParallel

TEXT, TALKER, PREDICTOR = (
    "thinker_config.text_config",
    "talker_config.text_config",
    "talker_config.code_predictor_config",
)


def changed(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(raw)
    *parents, name = path.split(".")
    section = raw
    for parent in parents:
        section = section.setdefault(parent, {})
    section[name] = value
    return raw


@pytest.mark.parametrize("section", [TEXT, TALKER, PREDICTOR])
@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("hidden_size", -1, "a whole number from 1 to"),
        ("hidden_size", "64", "a whole number from 1 to"),
        ("hidden_size", 1.5, "a whole number from 1 to"),
        ("hidden_size", True, "a whole number from 1 to"),
        ("hidden_size", 10**40, "a whole number from 1 to"),
        ("layer_types", 2**63, "a list of strings"),
        ("layer_types", "full_attention", "a list of strings"),
        ("num_hidden_layers", -3, "a whole number from 1 to 1024"),
        ("num_hidden_layers", 1_000_000, "a whole number from 1 to 1024"),
        ("num_attention_heads", 0, "a whole number from 1 to 1024"),
        ("num_key_value_heads", 3, "num_attention_heads: must be a multiple of num_key_value_heads, which is 3"),
        ("head_dim", 7, "an even number"),
        ("vocab_size", 0, "a whole number from 1 to"),
        ("rope_theta", 0, "a number from 1 to"),
        ("rope_theta", float("nan"), "a number from 1 to"),
        ("max_position_embeddings", 2**60, "a whole number from 1 to"),
        ("rms_norm_eps", "1e-6", "a number from"),
        ("hidden_act", "swiglu", "'silu' or 'gelu'"),
        ("attention_bias", "yes", "true or false"),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}, "rope_parameters.rope_type: must be 'default'"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling.type: must be 'default'"),
        ("rope_scaling", [1], "rope_scaling: must be an object"),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor: must be 1"),
        ("mlp_only_layers", [-1], "a list of whole numbers"),
    ],
)
def test_a_decoders_field_is_named_with_what_is_allowed(section: str, field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(RELEASED, f"{section}.{field}", value))
    message = str(caught.value)
    assert message.startswith(f"config.json.{section}.")
    assert allowed in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (f"{TEXT}.num_experts_per_tok", 129, "num_experts_per_tok: must be a whole number from 1 to 128, is 129"),
        (f"{TEXT}.num_experts", 10_000_000, "num_experts: must be a whole number from 0 to 4096"),
        (f"{PREDICTOR}.sliding_window", 3, ""),
        ("talker_config.accept_hidden_layer", 49, "accept_hidden_layer: must be a whole number from 0 to 48, is 49"),
        ("talker_config.accept_hidden_layer", -1, "accept_hidden_layer"),
        ("talker_config.thinker_hidden_size", 1024, "must be the thinker's hidden_size, 2048, is 1024"),
        ("talker_config.codec_eos_token_id", 3072, "codec_eos_token_id: must be a whole number from 0 to 3071"),
        ("talker_config.speaker_id", {"ethan": 5000}, "speaker_id.ethan: must be a whole number from 0 to 3071"),
        ("thinker_config.image_token_id", 10**6, "image_token_id: must be a whole number from 0 to 152063"),
        ("thinker_config.vision_config.depth", 10**6, "vision_config.depth: must be a whole number from 1 to 1024"),
        ("thinker_config.vision_config.num_heads", 7, "hidden_size: must be a multiple of num_heads, which is 7"),
        ("thinker_config.vision_config.deepstack_visual_indexes", [99], "deepstack_visual_indexes"),
        ("thinker_config.audio_config.output_dim", 3, "output_dim: must be the thinker's hidden_size, 2048, is 3"),
        ("thinker_config.audio_config.d_model", "x", "d_model"),
        ("code2wav_config.num_quantizers", 8, "num_quantizers: must be the talker's num_code_groups, 16, is 8"),
        ("code2wav_config.upsample_rates", [0], "upsample_rates"),
        ("thinker_config", None, "config.json.thinker_config: missing; is this a Qwen3-Omni checkpoint?"),
    ],
)
def test_other_fields_are_named_too(path: str, value: Any, words: str) -> None:
    raw = changed(RELEASED, path, value)
    if path.endswith("sliding_window"):
        raw = changed(raw, f"{PREDICTOR}.max_window_layers", 2)
        words = "sliding windows in the decoders are not implemented"
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert words in str(caught.value)


def test_defaults_are_those_of_the_reference() -> None:
    raw = copy.deepcopy(RELEASED)
    for section in (raw["thinker_config"]["text_config"], raw["talker_config"]["text_config"]):
        del section["norm_topk_prob"], section["rope_scaling"]
    raw["talker_config"]["text_config"]["mlp_only_layers"] = [0]
    config = parse_config(raw)
    assert config.thinker.norm_topk_prob
    assert not config.talker.text.norm_topk_prob
    assert config.thinker.mrope_section == config.talker.text.mrope_section == (24, 20, 20)
    assert config.talker.text.is_sparse(0), "the talker's class has no dense layers"


@pytest.fixture
def folder(tiny: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny["a"], tmp_path / "checkpoint")


def rewrite(folder: Path, path: str, value: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(changed(raw, path, value)))


def test_a_config_that_asks_for_more_than_the_weights_hold_fails_at_once(folder: Path) -> None:
    rewrite(folder, f"{TEXT}.num_hidden_layers", 1000)
    rewrite(folder, f"{TEXT}.num_experts", 4096)
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"lacks the tensor 'thinker\.model\.layers\."):
        load_thinker(str(folder), read_config(folder))
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    "text", ["[" * 200_000 + "]" * 200_000, '{"a":' * 100_000, "\ufeff{}", '{"x": ' + "9" * 5000 + "}"]
)
def test_a_file_that_cannot_be_parsed_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(folder)


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 500, b"{}", b'{"model": {"type": "BPE"}}', None])
@pytest.mark.parametrize("create", [create_decode, create_preprocessing])
def test_a_broken_tokenizer_is_named_at_start(folder: Path, create: Any, content: bytes | None) -> None:
    path = folder / "tokenizer.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match="tokenizer"):
        create(str(folder))


@pytest.mark.parametrize("create", [create_decode, create_preprocessing])
def test_the_tokenizer_of_another_checkpoint_is_named(folder: Path, tiny: dict[str, Path], create: Any) -> None:
    shutil.copy(tiny["b"] / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"id of <\|im_start\|> is \d+, config\.json says \d+"):
        create(str(folder))


def test_a_missing_chat_template_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        create_preprocessing(str(folder))


def test_an_encoders_unknown_activation_is_named(folder: Path) -> None:
    rewrite(folder, "thinker_config.vision_config.hidden_act", "swiglu")
    with pytest.raises(ConfigError, match=r"thinker_config\.vision_config\.hidden_act: must be 'silu' or 'gelu'"):
        create_image_encoder(str(folder))


def test_a_bias_cannot_be_split_over_ranks() -> None:
    config = parse_config(changed(RELEASED, f"{TEXT}.attention_bias", True)).thinker
    assert local_config(config, ALONE) == config
    with pytest.raises(ConfigError, match="tp_size: a checkpoint with attention_bias"):
        local_config(config, TensorParallel(0, 2))
