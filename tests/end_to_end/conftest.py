"""Checkpoints, media files and reference answers, each made once per test run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import media
import numpy as np
import pytest
from harness import SHAPES, TALKER_TOKENS, THINKER_TOKENS, Oracle, text_part

from omni_qwen3.chat import READ_ALOUD
from omni_testing.tiny.qwen3 import write_tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny checkpoint per shape."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for shape in SHAPES:
        write_tiny_checkpoint(folder / shape, seed=0, shape=shape)
    return {shape: folder / shape for shape in SHAPES}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Media files by name."""
    folder = tmp_path_factory.mktemp("media")
    made = {
        "image": media.write_image(folder / "image.png", 1),
        "image2": media.write_image(folder / "image2.png", 2, (96, 64)),
        "audio": media.write_audio(folder / "audio.wav", 3),
        "audio2": media.write_audio(folder / "audio2.wav", 4, 0.7),
        "audio_20_ms": media.write_audio(folder / "audio_20_ms.wav", 7, 0.02),
        "audio_13_ms": media.write_audio(folder / "audio_13_ms.wav", 8, 0.0126),
        "video": media.write_video(folder / "video.mkv", 5),
        "video_sound": media.write_video(folder / "video_sound.mkv", 6, sound=True),
    }
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="session")
def cases(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Every kind of input that the reference can answer, as messages."""

    def user(*parts: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": list(parts)}]

    def of(kind: str, name: str | None = None) -> dict[str, str]:
        return {"type": kind, "path": files[name or kind]}

    chats: dict[str, list[dict[str, Any]]] = {
        "text": user(text_part("Tell me a story about a red fox.")),
        "image": user(of("image"), text_part("What is in the picture?")),
        "audio": user(of("audio"), text_part("What do you hear?")),
        "short_sounds": user(
            of("audio", "audio_20_ms"), of("audio", "audio_13_ms"), text_part("  Listen \n\n to both. ")
        ),
        "short_sound": user(of("audio", "audio_20_ms"), text_part("And here?")),
        "video": user(of("video"), text_part("What happens here?")),
        "image_audio": user(of("image"), of("audio"), text_part("Do they belong together?")),
        "image_audio_video": user(of("image"), of("audio", "audio2"), of("video"), text_part("Describe all three.")),
        "video_with_audio": user(of("video", "video_sound"), text_part("What is said in the clip?")),
        "multi_turn": [
            {"role": "system", "content": [text_part("You are a friendly voice.")]},
            *user(of("image"), text_part("What colour is it?")),
            {"role": "assistant", "content": [text_part("It is red and blue.")]},
            *user(of("image", "image2"), text_part("And this one?")),
        ],
    }
    made: dict[str, dict[str, Any]] = {
        name: {"messages": chat, "thinker_max_new_tokens": THINKER_TOKENS, "talker_max_new_tokens": TALKER_TOKENS}
        for name, chat in chats.items()
    }
    made["video_with_audio"]["use_audio_in_video"] = True
    made["aloud"] = {
        "messages": user(text_part(READ_ALOUD)),
        "aloud": "One, two,  three.\nDas ist schön!",  # the reference's thinker is made to write it
        "thinker_max_new_tokens": 100,
        "talker_max_new_tokens": TALKER_TOKENS,
    }
    return made


@pytest.fixture(scope="session")
def reference(
    checkpoints: dict[str, Path], cases: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, np.ndarray]]:
    """Shape -> the reference's answers to every case: ``{case}.prompt``, ``{case}.ids``, ``{case}.wave``."""
    folder = tmp_path_factory.mktemp("oracle")
    made: dict[str, dict[str, np.ndarray]] = {}

    def answers(shape: str) -> dict[str, np.ndarray]:
        if shape not in made:
            with Oracle() as oracle:
                made[shape] = oracle.answers(checkpoints[shape], folder / f"{shape}.npz", cases)
        return made[shape]

    return answers
