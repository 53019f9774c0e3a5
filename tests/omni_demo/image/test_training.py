"""The training: its data, the judge, and one command that writes a checkpoint like the shipped one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from demo_training.image.build import Steps, build
from demo_training.image.judge import look, shows
from demo_training.image.prompts import describe, instruct
from demo_training.image.scenes import Scene, Thing, draw_edit, draw_scene, held_out, render
from omni_core.errors import ConfigError
from omni_demo.image.checkpoint import read_checkpoint
from omni_demo.image.pipeline import CHECKPOINT
from omni_demo.image.words import LONGEST, numbers_of
from omni_diffusion.pixels import to_bytes


@pytest.mark.full
def test_one_command_writes_a_checkpoint_like_the_one_that_is_shipped(tmp_path: Path) -> None:
    checkpoint = build(tmp_path, Steps(autoencoder=1, text=1, denoiser=1, pairs=64))
    made, shipped = load_file(checkpoint / "model.safetensors"), load_file(CHECKPOINT / "model.safetensors")
    assert {key: (value.shape, value.dtype) for key, value in made.items()} == {
        key: (value.shape, value.dtype) for key, value in shipped.items()
    }
    assert (checkpoint / "config.json").read_text() == (CHECKPOINT / "config.json").read_text()


def test_the_shipped_checkpoint_is_small() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 4e6
    assert all((path.stat().st_mode & 0o777) in (0o644, 0o664) for path in CHECKPOINT.iterdir())


def test_weights_are_read_within_half_a_step_of_what_was_written() -> None:
    stored, network = load_file(CHECKPOINT / "model.safetensors"), read_checkpoint(str(CHECKPOINT), "text")["text"]
    name = "blocks.0.up.weight"
    scale = stored[f"text.{name}.scale"].float()
    assert torch.equal(network.state_dict()[name], stored[f"text.{name}"].float() * scale[:, None])


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "nothing"])
def test_checkpoints_that_are_none_are_errors_of_the_config(tmp_path: Path, damage: str) -> None:
    for path in CHECKPOINT.iterdir():
        (tmp_path / path.name).write_bytes(b"{}" if path.name == damage else path.read_bytes())
    folder = tmp_path / "missing" if damage == "nothing" else tmp_path
    if damage == "config.json":
        (tmp_path / "config.json").write_text('{"width": 160, "heigth": 2}')
    with pytest.raises(ConfigError, match="no checkpoint of demo-image"):
        read_checkpoint(str(folder), "text")


def test_no_training_sees_what_the_report_asks() -> None:
    random = np.random.default_rng(0)
    assert not any(held_out(draw_scene(random)) for _ in range(300))
    assert all(held_out(draw_scene(random, tested=True)) for _ in range(50))


def test_every_sentence_is_in_known_words() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        scene = draw_scene(random)
        assert 0 < len(numbers_of(describe(scene, random))) <= LONGEST
        assert numbers_of(instruct(scene, draw_edit(scene, random), random)[0])


def test_the_judge_recognises_every_drawn_scene_and_no_other() -> None:
    random = np.random.default_rng(2)
    scenes = [draw_scene(random, tested=index % 2 == 0) for index in range(24)]
    drawn = to_bytes(render(scenes, 192)).numpy()
    for scene, picture in zip(scenes, drawn, strict=True):
        assert shows(picture, scene), (scene, look(picture))
        first = scene.things[0]
        for wrong in (
            evolve(scene, things=(evolve(first, colour="red" if first.colour != "red" else "blue"), *scene.things[1:])),
            evolve(
                scene, things=(evolve(first, shape="star" if first.shape != "star" else "circle"), *scene.things[1:])
            ),
        ):
            assert not shows(picture, wrong)
        if len(scene.things) == 2:
            assert not shows(picture, Scene(scene.layout, scene.things[::-1]))
            assert not shows(picture, Scene({"beside": "stacked", "stacked": "beside"}[scene.layout], scene.things))


def test_the_judge_sees_nothing_in_noise_and_a_blank() -> None:
    random = np.random.default_rng(3)
    scene = Scene("single", (Thing("red", "circle", 0.5, 0.5, 0.25),))
    assert not shows(random.integers(0, 256, (64, 64, 3), dtype=np.uint8), scene)
    assert not shows(np.full((64, 64, 3), 245, np.uint8), scene)
