"""A CTC recogniser that is told the text: spelling, scores, and the times of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint, frame_recognisers
from transformers import AutoModelForCTC, AutoProcessor

from omni_core.api import ConfigError
from omni_transformers.align.declaration import aligner_stage
from omni_transformers.align.network import Network
from omni_transformers.options import Given

assert frame_recognisers
RATE = 16_000


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(str(checkpoint("Wav2Vec2ForCTC")))


def spoken(network: Network, heard: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """Let the network hear a character in each frame of 0.1 s, ``-`` is the blank; return a sound of that length."""
    vocabulary = {**network._vocabulary, "-": network._tokenizer.pad_token_id, " ": network._vocabulary["|"]}
    scores = np.full((len(heard), len(network._vocabulary)), -9.0)
    scores[range(len(heard)), [vocabulary[each] for each in heard]] = -0.1
    monkeypatch.setattr(network, "scores", lambda samples: scores)
    return np.zeros(round(len(heard) * 0.1 * RATE), np.float32)


@pytest.mark.parametrize(
    ("heard", "text", "wanted"),
    [
        ("--hi- -there-", "Hi, there!", [("Hi,", 2, 4), ("there!", 7, 12)]),
        ("hh-i", "HI", [("HI", 0, 4)]),
        ("al-l --so", "all — so", [("all", 0, 4), ("so", 7, 9)]),
        ("at twenty -we", "at 20 we", [("at", 0, 2), ("20", 3, 9), ("we", 11, 13)]),
        ("ueber-", "uéber", [("uéber", 0, 5)]),
        ("-ab", "...", []),
        ("ab", "a a a", None),
    ],
)
def test_words_are_heard_where_their_letters_are(
    network: Network,
    heard: str,
    text: str,
    wanted: list[tuple[str, int, int]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = network.words(text, spoken(network, heard, monkeypatch), RATE)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert [(each.text, round(each.start * 10, 6), round(each.end * 10, 6)) for each in found] == wanted


def test_scripts_without_spaces_are_told_character_by_character(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = network.words("はい ok。", spoken(network, "-ab- -ok-", monkeypatch), RATE)
    assert found is not None
    assert [each.text for each in found] == ["は", "い", "ok。"]
    assert network.words("hi", np.zeros(0, np.float32), RATE) is None


def test_the_scores_are_those_of_the_model_and_windows_make_one_row(network: Network) -> None:
    folder = str(checkpoint("Wav2Vec2ForCTC"))
    samples = np.random.default_rng(0).normal(size=RATE * 2).astype(np.float32)
    inputs = AutoProcessor.from_pretrained(folder)(audio=samples, sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        wanted = AutoModelForCTC.from_pretrained(folder)(**inputs).logits[0].log_softmax(-1)
    np.testing.assert_allclose(network.scores(samples), wanted, atol=1e-4)
    assert len(network.scores(samples[:3000])) == round(3000 / 320)  # none of the silence behind it
    long = np.zeros(RATE * 65, np.float32)
    assert len(network.scores(long)) == pytest.approx(65 * RATE / 320, abs=2)
    found = network.words("one two", samples[::2], RATE // 2)  # at half the rate
    assert found is not None
    assert 0 <= found[0].start < found[0].end <= found[1].start < found[1].end <= 2.0


def test_other_tokenizers_spell_in_pieces() -> None:
    network = Network(str(checkpoint("ParakeetForCTC")))
    names = network._tokenizer.convert_ids_to_tokens(network.spelt("abc"))
    assert "".join(names).replace("▁", "") == "abc"
    assert network.spelt("日") in ([], [network._vocabulary["▁"]])


def test_only_ctc_recognisers_align() -> None:
    assert aligner_stage(Given(), str(checkpoint("Wav2Vec2ForCTC"))).process == "align"
    with pytest.raises(ConfigError, match=r"--option aligner=.*ParakeetForTDT is no CTC recogniser"):
        aligner_stage(Given(), str(checkpoint("ParakeetForTDT")))
