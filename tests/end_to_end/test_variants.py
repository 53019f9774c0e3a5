"""Checkpoints whose config differs from the released one, and videos with fractional time steps: equal to the
reference.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import pipeline, request_of, text_part

from omni_core.client import open_pipeline
from omni_qwen3 import tiny_checkpoint

Raw = dict[str, Any]


def decoders(**fields: Any) -> Callable[[Raw], None]:
    """Set fields in the sections of all three decoders."""

    def change(raw: Raw) -> None:
        for section in (
            raw["thinker_config"]["text_config"],
            raw["talker_config"]["text_config"],
            raw["talker_config"]["code_predictor_config"],
        ):
            section.update(fields)

    return change


def accept(layer: int) -> Callable[[Raw], None]:
    return lambda raw: raw["talker_config"].update(accept_hidden_layer=layer)


def without_normalisation(raw: Raw) -> None:
    raw["talker_config"]["text_config"].update(norm_topk_prob=False, mlp_only_layers=[0])
    raw["thinker_config"]["text_config"].update(mlp_only_layers=[1])


VARIANTS: dict[str, Callable[[Raw], None]] = {
    "attention_bias": decoders(attention_bias=True),
    "gelu": decoders(hidden_act="gelu"),
    "accept layer 0": accept(0),
    "accept the last layer": accept(4),
    "dense layers": without_normalisation,
}


def write(folder: Path, change: Callable[[Raw], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    original = tiny_checkpoint.model_config

    def config(*arguments: Any) -> Raw:
        raw = original(*arguments)
        change(raw)
        return raw

    monkeypatch.setattr(tiny_checkpoint, "model_config", config)
    return tiny_checkpoint.write_tiny_checkpoint(folder, seed=0, shape="a")


def answers(checkpoint: Path, cases: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """The reference's answers."""
    if not os.environ.get("OMNI_ORACLE_PACKAGES"):
        pytest.skip("the reference's processor needs torchvision in OMNI_ORACLE_PACKAGES; `nox -s tests` sets it")
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("oracle.py")
    command = [sys.executable, str(script), str(checkpoint), str(folder / "cases.json"), str(folder / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(folder / "out.npz"))


async def compare(checkpoint: Path, cases: dict[str, Any], folder: Path, **arguments: Any) -> None:
    expected = answers(checkpoint, cases, folder)
    config = pipeline(checkpoint, processes="one")
    config.stage("preprocessing").factory_args.update(arguments)
    async with open_pipeline(config) as client:
        for name, case in cases.items():
            answer = await client.submit(request_of(case))
            assert list(answer["decode"].token_ids) == expected[f"{name}.ids"].tolist(), name
            np.testing.assert_allclose(np.asarray(answer["code2wav"].samples), expected[f"{name}.wave"], atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_config_that_changes_numbers_changes_them_as_in_the_reference(
    name: str, cases: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write(tmp_path / "checkpoint", VARIANTS[name], monkeypatch)
    chosen = {each: cases[each] for each in ("text", "image_audio_video", "video_with_audio")}
    await compare(checkpoint, chosen, tmp_path)


async def test_tied_embeddings(cases: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    def tie(raw: Raw) -> None:
        raw["thinker_config"]["tie_word_embeddings"] = True

    checkpoint = write(tmp_path / "checkpoint", tie, monkeypatch)
    head, embedding = "thinker.lm_head.weight", "thinker.model.embed_tokens.weight"
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    reference = shutil.copytree(checkpoint, tmp_path / "reference")
    if head in index["weight_map"]:  # transformers wrote both; our copy has the embedding only
        path = checkpoint / index["weight_map"].pop(head)
        tensors = load_file(path)
        del tensors[head]
        save_file(tensors, path, {"format": "pt"})
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
        tensors = load_file(reference / path.name)
        source = load_file(reference / index["weight_map"][embedding])[embedding]
        save_file({**tensors, head: source.clone()}, reference / path.name, {"format": "pt"})
    chosen = {each: cases[each] for each in ("text", "image")}
    expected = answers(reference, chosen, tmp_path)
    async with open_pipeline(pipeline(checkpoint, processes="one")) as client:
        for name, case in chosen.items():
            answer = await client.submit(request_of(case))
            assert list(answer["decode"].token_ids) == expected[f"{name}.ids"].tolist(), name


@pytest.mark.parametrize("fps", [3.0, 1.4])
async def test_fractional_time_steps(
    fps: float, checkpoints: dict[str, Path], cases: dict[str, Any], tmp_path: Path
) -> None:
    # The files have 2 frames per second: at a lower rate some are skipped, at a higher one each is taken once.
    sampled = {"fps": fps, "frame_step": 2.0 / fps if fps < 2 else 0.0}
    names = ("video", "image_audio_video", "video_with_audio")
    chosen = {name: {**cases[name], **sampled} for name in names}
    await compare(checkpoints["a"], chosen, tmp_path, video_fps=fps)


@pytest.mark.parametrize(
    "order", [["video_sound", "video"], ["video", "video_sound"], ["video_sound", "image", "video"]]
)
async def test_a_silent_video_beside_one_with_sound(
    order: list[str], checkpoints: dict[str, Path], files: dict[str, str]
) -> None:
    parts = [{"type": name.split("_")[0], "path": files[name]} for name in order]
    chat = [{"role": "user", "content": [*parts, text_part("Which one is silent?")]}]
    case = {"messages": chat, "thinker_max_new_tokens": 12, "talker_max_new_tokens": 12, "use_audio_in_video": True}
    async with open_pipeline(pipeline(checkpoints["a"], processes="one")) as client:
        answer = await client.submit(request_of(case))
    (notice,) = answer["decode"].notices
    assert "video.mkv" in notice
    assert "no audio track" in notice
    assert len(answer["code2wav"].samples) > 0


async def test_a_checkpoint_saved_by_transformers_starts(
    checkpoints: dict[str, Path], cases: dict[str, Any], tmp_path: Path
) -> None:
    """The reference's processor is saved by itself, in a process that may see torchvision."""
    if not os.environ.get("OMNI_ORACLE_PACKAGES"):
        pytest.skip("the reference's processor needs torchvision in OMNI_ORACLE_PACKAGES; `nox -s tests` sets it")
    saved = shutil.copytree(checkpoints["a"], tmp_path / "saved")
    for path in saved.iterdir():
        if "token" in path.name or "preprocessor" in path.name or path.name.startswith(("chat", "vocab", "merges")):
            path.unlink()
    script = "import oracle, sys; oracle._load_torchvision(); oracle.load_processor(sys.argv[1]).save_pretrained(sys.argv[2])"
    command = [sys.executable, "-c", script, str(checkpoints["a"]), str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (saved / "processor_config.json").is_file()
    assert not (saved / "preprocessor_config.json").exists()
    async with open_pipeline(pipeline(checkpoints["a"], processes="one")) as client:
        expected = await client.submit(request_of(cases["image_audio_video"]))
    async with open_pipeline(pipeline(saved, processes="one")) as client:
        answer = await client.submit(request_of(cases["image_audio_video"]))
    assert list(answer["decode"].token_ids) == list(expected["decode"].token_ids)
