"""The words that VITS says, with their times: by the durations that transformers' own call predicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_transformers import checkpoint, speakers
from tiny_transformers.driving import replies, running, say
from transformers import VitsModel, VitsTokenizer

from omni_core.api import Word
from omni_transformers.checkpoints import read
from omni_transformers.speak.declaration import interface, stages
from omni_transformers.speak.stage import create_speaker
from omni_transformers.speak.vits_words import places, timed

assert speakers
SENTENCES = ["Hello there — wide world.", "And it goes on, to the end of it."]


def test_the_words_have_the_frames_of_their_letters() -> None:
    folder = str(checkpoint("VitsModel"))
    source = read(folder)
    assert interface(source).word_times
    [stage] = stages(source, source.given)
    with running(create_speaker(folder, **stage.factory_args)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say(" ".join(SENTENCES), speech={"seed": 3})])
    assert [[word.text for word in each.words] for each in streamed] == [
        ["Hello", "there", "wide", "world."],
        ["And", "it", "goes", "on,", "to", "the", "end", "of", "it."],
    ]
    assert [word for each in streamed for word in each.words] == result.words

    model, tokenizer = VitsModel.from_pretrained(folder), VitsTokenizer.from_pretrained(folder)
    found: list[Any] = []
    model.duration_predictor.register_forward_hook(lambda module, given, made: found.append(made))
    wanted, start = [], 0
    torch.manual_seed(3)
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            samples = model(ids, speaker_id=0).waveform.shape[-1]
        frames = torch.ceil(torch.exp(found.pop()[0, 0]) / model.config.speaking_rate).long()
        hop = int(np.prod(model.config.upsample_rates))
        assert int(frames.sum()) * hop == samples
        ends = start + frames.cumsum(0).numpy() * hop  # of each token: a blank, a letter, a blank, ...
        letters = "".join(each for each in sentence.lower() if each in tokenizer.encoder)
        at = 0
        for word in letters.split():
            at = letters.index(word, at)
            first, last = 2 * at + 1, 2 * (at + len(word) - 1) + 1
            wanted.append([ends[first - 1] / model.config.sampling_rate, ends[last] / model.config.sampling_rate])
            at += len(word)
        start += samples
    np.testing.assert_allclose([[each.start, each.end] for each in result.words], wanted, atol=1e-9)


FORMS = {"I am 25 — it": "aɪ æm twɛnti faɪv  ɪt", "I": "aɪ", "am": "æm", "25": "twɛnti faɪv", "—": "", "it": "ɪt"}


@pytest.mark.parametrize("blanks", [True, False])
def test_a_number_has_all_of_its_words_and_a_dash_none(blanks: bool) -> None:
    tokenizer = SimpleNamespace(add_blank=blanks, prepare_for_tokenization=lambda text: (FORMS.get(text, "x y z"), {}))
    form = FORMS["I am 25 — it"]
    tokens = ["", *(each for letter in form for each in (letter, ""))] if blanks else list(form)
    found = places(tokenizer, "I am 25 — it", len(tokens))
    assert [word for word, _, _ in found] == ["I", "am", "25", "it"]
    assert ["".join(tokens[begin:end]) for _, begin, end in found] == ["aɪ", "æm", "twɛnti faɪv", "ɪt"]
    assert all(tokens[begin] and tokens[end - 1] for _, begin, end in found)
    assert timed([("25", 1, 3)], [2, 3, 4, 5], 0.5) == [Word("25", 1.0, 4.5)]
    unlike = "I am here "  # three words, of which nothing tells which of nine is which
    assert places(tokenizer, unlike, 5 * (1 + blanks) + blanks) == [("I am here", 0, 5 * (1 + blanks) + blanks)]
