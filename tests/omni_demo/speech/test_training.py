"""The trainings: they run, they resume after an interruption, and they write the shipped checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from demo_training.speech import questions, sounds
from demo_training.speech.build import Steps, build
from demo_training.speech.loop import train
from demo_training.speech.report import plot_losses, sound
from demo_training.speech.speech import CODEBOOK, FRAME, GROUPS, LEAD, utterances
from omni_demo.speech.phrases import REPLIES, TOPICS
from omni_demo.speech.pipeline import CHECKPOINT


def shapes(folder: Path) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.mark.full
def test_one_command_writes_a_checkpoint_like_the_one_that_is_shipped(tmp_path: Path) -> None:
    checkpoint = build(tmp_path, Steps(thinker=1, talker=1, code2wav=1))
    assert shapes(checkpoint) == shapes(CHECKPOINT)
    for name in ("config.json", "tokenizer.json", "preprocessor_config.json", "chat_template.jinja"):
        assert (checkpoint / name).read_text() == (CHECKPOINT / name).read_text(), name
    plot_losses(tmp_path)
    assert (tmp_path / "losses.png").stat().st_size > 1000


class _Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 1)


def _train_line(folder: Path, steps: int, stop_at: int | None = None) -> torch.Tensor:
    model = _Line()

    def losses(step: int) -> dict[str, torch.Tensor]:
        if step == stop_at:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 4, generator=generator)
        return {"loss": (model.line(inputs)[:, 0] - inputs.sum(1)).square().mean()}

    train("line", model, losses, folder, steps=steps, rate=1e-2)
    return model.line.weight.detach()


@pytest.mark.full
def test_an_interrupted_training_ends_with_the_same_weights_and_the_same_log(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = _train_line(whole, 500)
    with pytest.raises(KeyboardInterrupt):
        _train_line(cut, 500, stop_at=350)
    assert torch.equal(_train_line(cut, 500), expected)
    assert (cut / "line.csv").read_text() == (whole / "line.csv").read_text()


def test_every_frame_of_every_reply_has_a_code_of_its_own_after_the_silence_that_all_share() -> None:
    spoken = utterances()
    assert [each.text for each in spoken] == list(REPLIES)
    codes = torch.cat([each.codes[LEAD:, 0] for each in spoken])
    assert len(codes.unique()) == len(codes)
    for each in spoken:
        assert each.codes.shape == (len(each.wave) // FRAME, GROUPS)
        assert torch.equal(each.codes[:LEAD], spoken[0].codes[:LEAD])
        assert int(each.codes.max()) < CODEBOOK
        assert each.wave[: LEAD * FRAME].abs().max() == 0


def test_no_text_outside_the_set_is_inside_it() -> None:
    random = np.random.default_rng(0)
    known = {questions.simple(prompt) for topic in TOPICS for prompt in topic.prompts}
    assert not known & {questions.simple(questions.something_else(random)) for _ in range(2000)}


def test_the_voices_of_the_tests_are_new_and_sound_different() -> None:
    assert not set(sounds.HELD_OUT_VOICES) & set(sounds.TRAINED_VOICES)
    one, other = (sound("yes", seed).parts[0]["samples"] for seed in (0, 1))
    assert len(one) != len(other)
