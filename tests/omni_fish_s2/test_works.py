"""The work of the stages at the released dimensions, against the sizes of the released tensors."""

from __future__ import annotations

from math import prod

import pytest
from fish_released import NAMES, RELEASED, folded

from omni_fish_s2.config import parse_config
from omni_fish_s2.works import works_of
from omni_torch.placement.work import Ask, Counts, DecoderWork, PassWork

WORKS = works_of(parse_config(RELEASED))


def test_a_network_has_as_many_weights_as_its_tensors() -> None:
    slow, vocoder = WORKS.stages["semantic_ar"], WORKS.stages["vocoder"]
    assert isinstance(slow, DecoderWork)
    assert slow.inner is not None
    sizes = {name: prod(shape) for name, shape in NAMES["decoders"].items()}
    fast = sum(size for name, size in sizes.items() if name.startswith("fast_"))
    assert slow.inner.shared + 2 * slow.inner.head == pytest.approx(fast, rel=0.001)
    assert slow.shared + (slow.embeddings or 0) == pytest.approx(sum(sizes.values()) - fast, rel=0.001)
    estimate = pytest.importorskip("omni_planner.estimate")
    assert sum(estimate.weights_of(slow)) == pytest.approx(sum(sizes.values()), rel=0.005)
    assert isinstance(vocoder, PassWork)
    codec = {name: prod(shape) for name, shape in folded(NAMES["codec"]).items()}
    of_encoder = ("encoder.", "quantizer.downsample", "quantizer.pre_module")
    decoder = sum(size for name, size in codec.items() if not name.startswith(of_encoder) and ".in_proj" not in name)
    assert vocoder.weights == pytest.approx(decoder, rel=0.01)


def test_a_frame_reads_the_fast_decoder_once_for_each_code() -> None:
    slow = WORKS.stages["semantic_ar"]
    assert isinstance(slow, DecoderWork)
    assert slow.inner is not None
    one = slow.demand(Counts(decodes=1, context=100), 2)
    weights = slow.shared + slow.head + 10 * (slow.inner.shared + slow.inner.head)
    assert one.nbytes == pytest.approx(2 * weights, rel=0.01)
    assert one.kernels == 12 * (36 + 10 * 4)


def test_speech_has_the_length_that_is_asked_for_or_that_of_its_text() -> None:
    spoken, text = (WORKS.visits(ask) for ask in (Ask(text=60, speech=12.0), Ask(text=60)))
    assert list(spoken) == ["preprocessing", "semantic_ar", "vocoder"]
    assert spoken["vocoder"].positions == round(12 * 44100 / 2048)
    assert spoken["semantic_ar"].outputs == spoken["vocoder"].positions + 1
    assert text["vocoder"].positions == round(15 * 44100 / 2048)
