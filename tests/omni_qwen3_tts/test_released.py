"""The released checkpoints' names and shapes: every one is read by our networks, and what is not read is named here.

The lists are those of the reference's networks at the released dimensions (``golden/make_golden.py``).
"""

from __future__ import annotations

import pytest
import torch
from qwen3_tts_released import CODEC, NOT_READ, RELEASED, names, released
from torch import nn

from omni_core.errors import ConfigError
from omni_qwen3_tts.checkpoint import JOINED, sources
from omni_qwen3_tts.codec.config import parse_codec
from omni_qwen3_tts.codec.decoder import CodecDecoder
from omni_qwen3_tts.codec.encoder import CodecEncoder
from omni_qwen3_tts.config import parse_config
from omni_qwen3_tts.memory import networks_of
from omni_qwen3_tts.speaker_encoder import SpeakerEncoder
from omni_qwen3_tts.talker_network import Talker


def read_by(networks: dict[str, nn.Module], on_disk: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the tensors that networks read, whose shapes must be those on disk."""
    read = {}
    for prefix, network in networks.items():
        for name, tensor in network.state_dict().items():
            found = sources(prefix, name, tensor.shape)
            if len(found) > 1:
                assert name.split(".")[-2] in JOINED
                shapes = [on_disk[source] for source, _ in found]
                assert (sum(shape[0] for shape in shapes), *shapes[0][1:]) == tuple(tensor.shape), name
                read |= {source: on_disk[source] for source, _ in found}
            else:
                read[found[0][0]] = tuple(tensor.shape)
    return read


@pytest.mark.parametrize(("size", "kind"), RELEASED)
def test_every_tensor_of_a_checkpoint_is_read(size: str, kind: str) -> None:
    config = parse_config(released(size, kind))
    with torch.device("meta"):
        networks: dict[str, nn.Module] = {"talker.": Talker(config)}
        if config.speaker_encoder is not None:
            networks["speaker_encoder."] = SpeakerEncoder(config.speaker_encoder)
    on_disk = names(f"{size}/{kind}")
    assert read_by(networks, on_disk) == on_disk
    assert set(networks_of(config)) == {"talker", "code2wav", *(["preprocessing"] if kind == "base" else [])}
    assert config.reads_style == (size == "1b7" and kind != "base")
    assert len(config.spoken) == 10


def test_every_tensor_of_the_codec_is_read() -> None:
    config = parse_codec(CODEC)
    assert config.encoder is not None
    with torch.device("meta"):
        decoder, encoder = CodecDecoder(config), CodecEncoder(config.encoder, config.codebooks, config.codebook_size)
    on_disk = names("codec")
    read = read_by({"decoder.": decoder, "encoder.": encoder}, on_disk)
    assert {name: on_disk[name] for name in read} == read
    left = [name for name in on_disk.keys() - read.keys() if not NOT_READ.fullmatch(name)]
    assert not left
    assert not [name for name in read if NOT_READ.fullmatch(name)]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tts_model_type", "song", "config.json.tts_model_type: must be 'base' or 'custom_voice' or 'voice_design'"),
        (
            "tokenizer_type",
            "qwen3_tts_tokenizer_25hz",
            "config.json.tokenizer_type: must be 'qwen3_tts_tokenizer_12hz'",
        ),
        (
            "talker_config.codec_eos_token_id",
            3072,
            "codec_eos_token_id: must be a whole number from 0 to 3071, is 3072",
        ),
        ("talker_config.rope_scaling.rope_type", "yarn", "rope_type: must be 'default'"),
        ("talker_config.code_predictor_config.num_code_groups", 8, "num_code_groups: must be the talker's, 16, is 8"),
        ("talker_config.spk_is_dialect.dylan", "martian", "spk_is_dialect.dylan: must be false, or one of"),
        ("talker_config.use_sliding_window", True, "sliding windows in the decoders are not implemented"),
        ("talker_config.head_dim", 127, "head_dim: must be an even number, is 127"),
    ],
)
def test_a_config_that_is_not_implemented_is_refused(path: str, value: object, message: str) -> None:
    raw = released("1b7", "custom_voice")
    *sections, name = path.split(".")
    place = raw
    for section in sections:
        place = place[section]
    place[name] = value
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        (None, "decode_upsample_rate", 1000, "decode_upsample_rate: must be 1920"),
        ("decoder_config", "hidden_act", "gelu", "hidden_act: must be 'silu'"),
        ("decoder_config", "decoder_dim", 1000, "decoder_dim: must be a multiple of 16"),
        ("encoder_config", "upsampling_ratios", [8, 6], "whole numbers whose product is 960, half a frame"),
        ("encoder_config", "use_conv_shortcut", True, "use_conv_shortcut: must be False"),
    ],
)
def test_a_codec_that_is_not_implemented_is_refused(
    section: str | None, name: str, value: object, message: str
) -> None:
    raw = {**CODEC, **({} if section is None else {section: {**CODEC[section], name: value}})}
    if section is None:
        raw[name] = value
    with pytest.raises(ConfigError) as refused:
        parse_codec(raw)
    assert message in str(refused.value)
