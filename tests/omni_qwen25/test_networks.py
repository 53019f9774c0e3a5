"""Every tensor of released configs is read by a stage; token2wav in chunks and in mixed batches; voices; configs that are refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from qwen25_released import released, released_shapes
from qwen25_stages import through
from tiers import few

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_qwen3.checkpoint import sources
from omni_qwen25.block_attention import NAME, NEIGHBOURS
from omni_qwen25.code2mel import create_code2mel
from omni_qwen25.config import parse_config, read_config
from omni_qwen25.dit import MelNetwork
from omni_qwen25.mel2wav import Vocoder
from omni_qwen25.networks import PARTS, Talker, Thinker, describe_part
from omni_qwen25.pipeline import qwen25_omni
from omni_qwen25.voices import load_voices, voice_names, voice_of


@pytest.mark.parametrize("size", ["7B", "3B"])
def test_every_tensor_of_a_released_config_has_its_place(size: str) -> None:
    raw = released(size)
    config = parse_config(raw)
    assert config.talker is not None
    with torch.device("meta"):
        ours = {"thinker.": Thinker(config.thinker), "talker.": Talker(config.talker)}
    ours |= {prefix: describe_part(config, name) for name, (_, _, prefix) in PARTS.items()}
    wanted: dict[str, tuple[int, ...] | None] = {}
    rows: dict[str, list[torch.Size]] = {}
    for prefix, network in ours.items():
        for name, tensor in network.state_dict().items():
            parts = sources(name, tensor.shape)
            wanted |= {prefix + source: shape for source, shape in parts}
            rows.setdefault(prefix + name, []).append(tensor.shape)
    there = released_shapes(raw)
    assert there.keys() == wanted.keys()
    assert all(shape is None or there[name] == tuple(shape) for name, shape in wanted.items())
    assert sum(torch.Size(shape).numel() for shape in there.values()) == sum(
        shape.numel() for shapes in rows.values() for shape in shapes
    )


def spoken(name: str, codes: int, **params: Any) -> StagePayload:
    drawn = torch.randint(0, 48, (codes,), generator=torch.Generator().manual_seed(codes))
    return StagePayload(
        name, OmniRequest(params={"token2wav": {"seed": 5, **params}}), {"codes": drawn, "finish_reason": "stop"}
    )


def test_speeches_of_mixed_steps_lengths_and_guidance_are_as_alone(tiny: dict[str, Path]) -> None:
    asked = [
        spoken("a", 20, num_steps=3),
        spoken("b", 20, num_steps=6),
        spoken("c", 20, guidance_scale=0.0),
        spoken("d", 33),
        spoken("e", 0),
        spoken("f", 20, guidance_scale=2.0, sway_coefficient=0.0),
    ]
    scheduler = create_code2mel(str(tiny["b"]))
    together, _ = through(scheduler, {each.request_id: each for each in asked})
    counted = scheduler.statistics()
    assert counted["stepped"] == 2 + 5 + 9 + 9 + 9
    assert counted["steps"] < counted["stepped"], "no step was shared"
    for payload in asked:
        alone, _ = through(create_code2mel(str(tiny["b"])), {payload.request_id: payload})
        one, other = (found[payload.request_id].data["mel"] for found in (together, alone))
        assert one.shape == (20, 2 * len(payload.data["codes"]))
        assert torch.allclose(one, other, atol=1e-4)
    assert not torch.allclose(together["a"].data["mel"], together["b"].data["mel"], atol=1e-2)
    assert not torch.allclose(together["c"].data["mel"], together["f"].data["mel"], atol=1e-2)


@pytest.mark.parametrize("shape", few(["a", "b", "c"], 2))
@pytest.mark.parametrize(
    "frames", few([1, 5, 24, 50], 3)
)  # less than a block; blocks of 8, 6 and 4 that are full, and not
def test_attention_among_blocks_equals_that_of_all_masked_pairs(tiny: dict[str, Path], shape: str, frames: int) -> None:
    network = MelNetwork(str(tiny[shape]), read_config(tiny[shape]))
    draw = torch.Generator().manual_seed(frames)
    x = torch.randn(2, frames, network._network.hidden_size, generator=draw)
    moment = torch.randn(2, network._network.hidden_size, generator=draw)
    turns = network._network.rotary_embed(x, torch.arange(frames).expand(2, -1))
    seen = set()
    for block in network._network.transformer_blocks:
        seen.add((block.look_backward_block, block.look_ahead_block))
        config = block.attn.config
        assert config._attn_implementation == NAME
        ours = block(x, moment, position_embeddings=turns, block_diff=NEIGHBOURS)
        config._attn_implementation = "sdpa"
        pairs = network._network._create_block_diff(x)
        assert torch.allclose(ours, block(x, moment, position_embeddings=turns, block_diff=pairs), atol=1e-5)
        config._attn_implementation = NAME
    assert seen >= {(1, 0), (0, 1)}


def test_a_speech_that_is_too_long_fails_alone(tiny: dict[str, Path], tmp_path: Path) -> None:
    for path in tiny["c"].iterdir():
        (tmp_path / path.name).symlink_to(path)
    raw = json.loads((tiny["c"] / "config.json").read_text())
    raw["token2wav_config"]["dit_config"]["max_position_embeddings"] = 30
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InvalidRequestError, match="16 codes of speech are 32 mel frames; token2wav holds 30"):
        through(create_code2mel(str(tmp_path)), {"a": spoken("a", 16)})
    assert read_config(tmp_path).talker.most_codes == 15  # type: ignore[union-attr]
    assert through(create_code2mel(str(tmp_path)), {"b": spoken("b", 15)})[0]["b"].data["mel"].shape == (8, 30)


def test_sound_in_chunks_equals_sound_at_once(tiny: dict[str, Path]) -> None:
    mel = torch.randn(16, 150, generator=torch.Generator().manual_seed(1)) - 3
    whole = torch.cat(list(Vocoder(str(tiny["a"]), chunk=1000).pieces(mel)))
    pieces = list(Vocoder(str(tiny["a"]), chunk=37).pieces(mel))
    assert [len(each) for each in pieces] == [37 * 240] * 4 + [2 * 240]
    assert whole.std() > 1e-3
    assert torch.allclose(torch.cat(pieces), whole, atol=1e-5)


def test_voices_are_read_by_name(tiny: dict[str, Path]) -> None:
    voices = load_voices(tiny["a"])
    assert voice_names(tiny["a"]) == sorted(voices) == ["Chelsie", "Ethan"]
    assert voice_of(OmniRequest(metadata={"speaker": "ETHAN"}), voices) == "Ethan"
    assert voice_of(OmniRequest(), voices) == "Chelsie"
    with pytest.raises(
        InvalidRequestError, match=r"metadata\.speaker: 'Aiden' is unknown; known voices: Chelsie, Ethan"
    ):
        voice_of(OmniRequest(metadata={"speaker": "Aiden"}), voices)


class _Evil:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/omni-was-here", "w"))


def test_a_file_of_voices_runs_no_code(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "spk_dict.pt", "w") as archive:
        archive.writestr("spk_dict/data.pkl", pickle.dumps({"Chelsie": _Evil()}))
    assert voice_names(tmp_path) is None
    with pytest.raises(ConfigError, match=r"spk_dict\.pt cannot be read"):
        load_voices(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("thinker_config", "text_config", "use_sliding_window"), True, "sliding windows in the decoders are not"),
        (("thinker_config", "text_config", "num_key_value_heads"), 3, "num_attention_heads: must be a multiple"),
        (("thinker_config", "text_config", "rope_parameters"), {"mrope_section": [1, 2, 3]}, "half of head_dim, 8"),
        (("talker_config", "embedding_size"), 12, "embedding_size: must be the thinker's hidden_size, 64, is 12"),
        (("token2wav_config",), None, "token2wav_config: missing; is this a Qwen2.5-Omni checkpoint"),
        (("thinker_config", "audio_token_index"), 10**6, "audio_token_index: must be a whole number from 0"),
    ],
)
def test_configs_that_cannot_be_run_are_refused_by_name(
    tiny: dict[str, Path], path: tuple[str, ...], value: Any, text: str
) -> None:
    raw = json.loads((tiny["a"] / "config.json").read_text())
    section = raw
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    with pytest.raises(ConfigError, match=text):
        parse_config(raw)


def test_a_checkpoint_without_speech_is_refused_by_the_stages_of_speech(tiny: dict[str, Path], tmp_path: Path) -> None:
    raw = json.loads((tiny["a"] / "config.json").read_text())
    raw["enable_audio_output"] = False
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert read_config(tmp_path).talker is None
    with pytest.raises(ConfigError, match="does not speak: use qwen25-text"):
        create_code2mel(str(tmp_path))


def test_stages_of_transformers_networks_share_its_import(tiny: dict[str, Path]) -> None:
    """Each of these processes would take seconds of its own for the import."""
    config, stages = read_config(tiny["a"]), {each.name: each for each in qwen25_omni(str(tiny["a"])).stages}
    networks = {"image_encoder": "visual", "audio_encoder": "audio", "code2mel": "dit", "mel2wav": "bigvgan"}
    for stage, part in networks.items():
        assert type(describe_part(config, part)).__module__ in stages[stage].preload, stage
    assert {name for name, each in stages.items() if each.preload} == set(networks)
