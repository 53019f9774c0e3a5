"""Checkpoints whose config differs from the released one, and videos with fractional time steps: equal to the
reference.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Oracle, pipeline, request_of, text_part
from tiers import few

from omni_core.client import open_async
from omni_testing.tiny import qwen3 as tiny_checkpoint

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


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """One process for all tests of the file."""
    with Oracle() as oracle:
        yield oracle


async def compare(oracle: Oracle, checkpoint: Path, cases: dict[str, Any], folder: Path, **arguments: Any) -> None:
    oracle.begin(checkpoint, folder / "out.npz", cases=cases)
    config = pipeline(checkpoint, processes="one")
    config.stage("preprocessing").factory_args.update(arguments)
    answers = {}
    async with open_async(config) as client:
        for name, case in cases.items():
            answers[name] = await client.submit(request_of(case))
    oracle.wait(folder / "out.npz")
    expected = np.load(folder / "out.npz")
    for name, answer in answers.items():
        assert list(answer["decode"].token_ids) == expected[f"{name}.ids"].tolist(), name
        np.testing.assert_allclose(np.asarray(answer["code2wav"].samples), expected[f"{name}.wave"], atol=1e-4)


@pytest.mark.parametrize("name", few(VARIANTS, 2))
async def test_a_config_that_changes_numbers_changes_them_as_in_the_reference(
    name: str, oracle: Oracle, cases: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write(tmp_path / "checkpoint", VARIANTS[name], monkeypatch)
    chosen = {each: cases[each] for each in ("text", "image_audio_video", "video_with_audio")}
    await compare(oracle, checkpoint, chosen, tmp_path)


async def test_tied_embeddings(
    oracle: Oracle, cases: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    expected = oracle.answers(reference, tmp_path / "out.npz", chosen)
    async with open_async(pipeline(checkpoint, processes="one")) as client:
        for name, case in chosen.items():
            answer = await client.submit(request_of(case))
            assert list(answer["decode"].token_ids) == expected[f"{name}.ids"].tolist(), name


@pytest.mark.parametrize("fps", few([3.0, 1.4], 1))
async def test_fractional_time_steps(
    fps: float, oracle: Oracle, checkpoints: dict[str, Path], cases: dict[str, Any], tmp_path: Path
) -> None:
    # The files have 2 frames per second: at a lower rate some are skipped, at a higher one each is taken once.
    sampled = {"fps": fps, "frame_step": 2.0 / fps if fps < 2 else 0.0}
    names = ("video", "image_audio_video", "video_with_audio")
    chosen = {name: {**cases[name], **sampled} for name in names}
    await compare(oracle, checkpoints["a"], chosen, tmp_path, video_fps=fps)


@pytest.mark.parametrize(
    "order", [["video_sound", "video"], ["video", "video_sound"], ["video_sound", "image", "video"]]
)
async def test_a_silent_video_beside_one_with_sound(
    order: list[str], checkpoints: dict[str, Path], files: dict[str, str]
) -> None:
    parts = [{"type": name.split("_")[0], "path": files[name]} for name in order]
    chat = [{"role": "user", "content": [*parts, text_part("Which one is silent?")]}]
    case = {"messages": chat, "thinker_max_new_tokens": 12, "talker_max_new_tokens": 12, "use_audio_in_video": True}
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        answer = await client.submit(request_of(case))
    (notice,) = answer["decode"].notices
    assert "video.mkv" in notice
    assert "no audio track" in notice
    assert len(answer["code2wav"].samples) > 0


async def test_a_checkpoint_saved_by_transformers_starts(
    oracle: Oracle, checkpoints: dict[str, Path], cases: dict[str, Any], tmp_path: Path
) -> None:
    saved = shutil.copytree(checkpoints["a"], tmp_path / "saved")
    for path in saved.iterdir():
        if "token" in path.name or "preprocessor" in path.name or path.name.startswith(("chat", "vocab", "merges")):
            path.unlink()
    oracle.begin(checkpoints["a"], saved)
    oracle.wait(saved)
    assert (saved / "processor_config.json").is_file()
    assert not (saved / "preprocessor_config.json").exists()
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        expected = await client.submit(request_of(cases["image_audio_video"]))
    async with open_async(pipeline(saved, processes="one")) as client:
        answer = await client.submit(request_of(cases["image_audio_video"]))
    assert list(answer["decode"].token_ids) == list(expected["decode"].token_ids)
