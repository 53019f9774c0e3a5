"""The work of the stages at the released dimensions, against the sizes of the released tensors."""

from __future__ import annotations

from math import prod

import pytest
from qwen25_released import released, released_shapes

from omni_qwen25.config import parse_config
from omni_qwen25.works import works_of
from omni_torch.placement.work import Ask, Counts, DecoderWork, PassWork

NAMES = {
    "preprocessing",
    "image_encoder",
    "audio_encoder",
    "mm_aggregate",
    "thinker",
    "decode",
    "talker",
    "code2mel",
    "mel2wav",
}
EVALUATIONS = 36


@pytest.mark.parametrize("size", ["7B", "3B"])
def test_a_network_has_as_many_weights_as_its_tensors(size: str) -> None:
    raw = released(size)
    sizes = {name: prod(shape) for name, shape in released_shapes(raw).items()}
    works = works_of(parse_config(raw), NAMES).stages

    def found(*beginnings: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(beginnings))

    thinker, talker = works["thinker"], works["talker"]
    assert isinstance(thinker, DecoderWork)
    assert isinstance(talker, DecoderWork)
    assert thinker.shared + thinker.head == pytest.approx(found("thinker.model.layers", "thinker.lm_head"), rel=0.001)
    assert talker.shared + talker.head + (talker.embeddings or 0) == pytest.approx(found("talker."), rel=0.001)
    denoising = works["code2mel"]
    assert isinstance(denoising, PassWork)
    evaluated = "token2wav.code2wav_dit_model.transformer_blocks"
    assert denoising.weights / EVALUATIONS == pytest.approx(found(evaluated), rel=0.01)
    others = {
        "image_encoder": "thinker.visual.",
        "audio_encoder": "thinker.audio_tower.",
        "mel2wav": "token2wav.code2wav_bigvgan_model.",
    }
    for stage, part in others.items():
        work = works[stage]
        assert isinstance(work, PassWork)
        assert work.weights == pytest.approx(found(part), rel=0.02), stage  # norms and biases are left out


def test_an_evaluation_of_the_denoising_multiplies_its_weights_with_the_frames_of_both_rows() -> None:
    works = works_of(parse_config(released("7B")), NAMES).stages
    demand = works["code2mel"].demand(Counts(positions=1200), 4)
    blocks = 22 * (4 + 4) * 1024**2  # without what makes scales of the point in time
    assert demand.flops == pytest.approx(EVALUATIONS * 2 * 1200 * 2 * blocks, rel=0.05)


def test_the_visits_of_a_request_are_those_of_its_media() -> None:
    works = works_of(parse_config(released("7B")), NAMES)
    text = works.visits(Ask(text=100, reply=20))
    assert list(text) == ["preprocessing", "mm_aggregate", "thinker", "decode"]
    assert (text["thinker"].positions, text["thinker"].outputs) == (100, 20)
    spoken = works.visits(Ask(text=100, audio=8.0, pixels=448 * 448, reply=20, speech=4.0))
    assert set(spoken) == NAMES
    assert spoken["image_encoder"].positions == 32 * 32
    assert spoken["thinker"].positions == 100 + 256 + 200
    assert spoken["talker"].outputs == 201
    assert spoken["code2mel"].positions == spoken["mel2wav"].positions == 400
    assert works_of(parse_config(released("7B")), {"thinker"}).visits(Ask()).keys() == {"thinker"}
