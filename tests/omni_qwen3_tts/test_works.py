"""The work and the places of the stages at the released dimensions, against the sizes of the released tensors."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from qwen3_tts_released import CODEC, NOT_READ, RELEASED, names, released

from omni_core.config.completion import Machine
from omni_core.errors import ConfigError
from omni_qwen3_tts.codec.config import parse_codec
from omni_qwen3_tts.config import parse_config
from omni_qwen3_tts.memory import place
from omni_qwen3_tts.pipeline import qwen3_tts
from omni_qwen3_tts.works import works_of
from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint
from omni_torch.placement.work import Ask, DecoderWork, PassWork


@pytest.mark.parametrize(("size", "kind"), RELEASED[::3])
def test_a_network_has_as_many_weights_as_its_tensors(size: str, kind: str) -> None:
    works = works_of(parse_config(released(size, kind)), parse_codec(CODEC))
    talker, vocoder = works.stages["talker"], works.stages["code2wav"]
    assert isinstance(talker, DecoderWork)
    assert isinstance(vocoder, PassWork)
    assert talker.inner is not None
    sizes = {name: prod(shape) for name, shape in names(f"{size}/{kind}").items() if name.startswith("talker.")}
    inner = sum(each for name, each in sizes.items() if ".code_predictor." in name)
    found = talker.inner
    assert found.shared + 15 * (found.head + (found.embeddings or 0)) == pytest.approx(inner, rel=0.001)
    whole = talker.shared + talker.head + (talker.embeddings or 0)
    assert whole == pytest.approx(sum(sizes.values()) - inner, rel=0.001)
    codec = {name: prod(shape) for name, shape in names("codec").items() if not NOT_READ.fullmatch(name)}
    decoder = sum(each for name, each in codec.items() if name.startswith("decoder."))
    assert vocoder.weights == pytest.approx(decoder, rel=0.01)


def test_speech_has_the_length_that_is_asked_for_or_that_of_its_text() -> None:
    works = works_of(parse_config(released("0b6", "base")), parse_codec(CODEC))
    spoken, text = (works.visits(ask) for ask in (Ask(text=60, speech=12.0), Ask(text=60)))
    assert list(spoken) == ["preprocessing", "talker", "code2wav"]
    assert spoken["code2wav"].positions == 150
    assert spoken["talker"].outputs == 151
    assert text["code2wav"].positions == round(15 * 12.5)


def test_networks_go_to_a_gpu_and_a_missing_codec_is_named(tmp_path: Path) -> None:
    for shape, stages in (("base-a", {"preprocessing", "talker", "code2wav"}), ("a", {"talker", "code2wav"})):
        folder = write_tiny_checkpoint(tmp_path / shape, shape=shape)
        placed = place(qwen3_tts(str(folder)), Machine(gpus=[24 * 2**30])).config
        assert {stage.name for stage in placed.stages if stage.gpu == 0} == stages
    for path in (folder / "speech_tokenizer").iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="speech_tokenizer is missing"):
        place(qwen3_tts(str(folder)), Machine(gpus=[24 * 2**30]))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_tts"}))
    assert qwen3_tts(str(folder)).interface is not None, "its stages say what is missing"
