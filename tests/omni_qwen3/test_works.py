"""The work of the stages at the released dimensions, against the sizes of the released tensors."""

from __future__ import annotations

from math import prod

import pytest
from released import RELEASED
from released_files import ENCODERS, released_shapes

from omni_qwen3.config import parse_config
from omni_qwen3.works import works_of
from omni_torch.placement.work import Ask, Counts, DecoderWork, PassWork

NAMES = {
    "preprocessing",
    "image_encoder",
    "audio_encoder",
    "mm_aggregate",
    "thinker",
    "decode",
    "talker_ar",
    "code2wav",
}


def test_a_network_has_as_many_weights_as_its_tensors() -> None:
    works = works_of(parse_config(RELEASED), NAMES).stages
    sizes = {name: prod(shape) for name, shape in (released_shapes(RELEASED) | ENCODERS).items()}
    thinker = works["thinker"]
    assert isinstance(thinker, DecoderWork)
    found = sum(size for name, size in sizes.items() if name.startswith(("thinker.model.layers", "thinker.lm_head")))
    assert thinker.shared + thinker.head + thinker.experts * thinker.expert == pytest.approx(found, rel=0.001)
    others = {"image_encoder": "visual", "audio_encoder": "audio_tower", "code2wav": "code2wav"}
    for stage, part in others.items():
        name = f"{part}.all" if stage == "code2wav" else f"thinker.{part}.all"
        work = works[stage]
        assert isinstance(work, PassWork)
        assert work.weights == pytest.approx(sizes[name], rel=0.2), stage  # norms, biases and tables are left out


def test_a_decode_reads_what_its_experts_are_and_a_batch_shares_them() -> None:
    thinker = works_of(parse_config(RELEASED), NAMES).stages["thinker"]
    one, many = (thinker.demand(Counts(decodes=rows, context=100 * rows), 2) for rows in (1, 64))
    assert one.nbytes == pytest.approx(6.1e9, rel=0.05), "3 of the 30 billion values, in bfloat16"
    assert many.flops == pytest.approx(64 * one.flops)
    assert many.nbytes < 64 * one.nbytes / 6
    split = thinker.demand(Counts(decodes=64, context=6400), 2, 4)
    assert (split.flops, split.nbytes) == (pytest.approx(many.flops / 4), pytest.approx(many.nbytes / 4))
    assert split.exchanges == 2 * 48


def test_the_visits_of_a_request_are_those_of_its_media() -> None:
    works = works_of(parse_config(RELEASED), NAMES)
    text = works.visits(Ask(text=100, reply=20))
    assert list(text) == ["preprocessing", "mm_aggregate", "thinker", "decode"]
    assert (text["thinker"].positions, text["thinker"].outputs) == (100, 20)
    spoken = works.visits(Ask(text=100, audio=8.0, pixels=512 * 512, reply=20, speech=4.0))
    assert set(spoken) == NAMES
    assert spoken["image_encoder"].positions == 32 * 32
    assert spoken["thinker"].positions == 100 + 256 + 100
    assert spoken["code2wav"].positions == 50
    assert works_of(parse_config(RELEASED), {"thinker"}).visits(Ask()).keys() == {"thinker"}


def test_the_talker_has_no_ranks() -> None:
    """Its runner takes none, so a plan with them could not start."""
    stages = works_of(parse_config(RELEASED), NAMES).stages
    talker, thinker = stages["talker_ar"], stages["thinker"]
    assert isinstance(talker, DecoderWork)
    assert isinstance(thinker, DecoderWork)
    assert talker.ranks == (1,)
    assert thinker.ranks[:2] == (1, 2)
