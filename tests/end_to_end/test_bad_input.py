"""Bad input is a clear error that names the input; the next request is unharmed."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import media
import numpy as np
import pytest
import pytest_asyncio
import soundfile
from harness import pipeline, request_of, text_part

from omni_core.client import AsyncPipe, open_async
from omni_core.errors import InvalidRequestError, OmniError, RequestFailedError


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(checkpoints: dict[str, Path]) -> AsyncIterator[AsyncPipe]:
    async with open_async(pipeline(checkpoints["a"], max_audio_seconds=60.0)) as opened:
        yield opened


@pytest.fixture(scope="module")
def bad_files(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bad")

    def cut(name: str, keep: float) -> str:
        source = Path(files[name])
        path = folder / f"cut_{source.name}"
        whole = source.read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])
        return str(path)

    def noise(suffix: str) -> str:
        path = folder / f"noise{suffix}"
        path.write_bytes(np.random.default_rng(0).bytes(4000))
        return str(path)

    def sound(name: str, samples: np.ndarray) -> str:
        soundfile.write(folder / name, samples.astype(np.float32), 16_000, subtype="FLOAT")
        return str(folder / name)

    (folder / "text.png").write_text("this is no picture")
    whole = media.write_video(folder / "whole.mp4", 7, frames=40, codec="mpeg4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").write_bytes(b"")
    hole = np.zeros(16_000)
    hole[100] = np.nan
    return {
        "cut image": cut("image", 0.5),
        "noise image": noise(".png"),
        "text image": str(folder / "text.png"),
        "empty image": str(folder / "empty.png"),
        "cut audio": cut("audio", 0.0005),
        "noise audio": noise(".wav"),
        "silent audio": sound("zero.wav", np.zeros(0)),
        "long audio": sound("long.wav", np.zeros(20 * 60 * 16_000)),
        "nan audio": sound("nan.wav", hole),
        "cut video": cut("video", 0.02),
        "noise video": noise(".mp4"),
        "halved video": str(folder / "cut.mp4"),
        "missing image": str(folder / "nowhere.png"),
    }


BAD_MEDIA = [
    "cut image",
    "noise image",
    "text image",
    "empty image",
    "cut audio",
    "noise audio",
    "silent audio",
    "long audio",
    "nan audio",
    "cut video",
    "noise video",
    "halved video",
    "missing image",
]


async def fails(client: AsyncPipe, request: Any) -> str:
    with pytest.raises(OmniError) as caught:
        await client.submit(request)
    if isinstance(caught.value, RequestFailedError):
        assert isinstance(caught.value, InvalidRequestError), caught.value
    return str(caught.value)


async def still_answers(client: AsyncPipe, cases: dict[str, Any]) -> None:
    assert (await client.submit(request_of(cases["image"])))["decode"].token_ids


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", BAD_MEDIA)
async def test_bad_media(name: str, client: AsyncPipe, bad_files: dict[str, str], cases: dict[str, Any]) -> None:
    path = bad_files[name]
    kind = name.split()[1]
    request = request_of(cases["text"])
    request.inputs = {
        "messages": [{"role": "user", "content": [{"type": kind, "path": path}, text_part("What is it?")]}]
    }
    message = await fails(client, request)
    assert Path(path).name in message
    assert "messages[0].content[0]" in message
    await still_answers(client, cases)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"metadata": {"speaker": "Nobody"}}, ["Nobody", "ethan"]),
        ({"modalities": ["text", "smell"]}, ["smell", "audio"]),
        ({"modalities": []}, ["modalities"]),
        ({"params": {"thinker": {"temperature": -1.0}}}, ["temperature"]),
        ({"params": {"thinker": {"temprature": 1.0}}}, ["temprature", "temperature"]),
        ({"params": {"temprature": 1.0}}, ["params.temprature", "temperature"]),
        ({"params": {"thiker": {}}}, ["params.thiker", "'thinker'"]),
        ({"params": {"temperature": 0.5}}, ["params.temperature", "params.thinker.temperature", "twice"]),
        ({"params": {"stop": ["a"] * 17}}, ["params.stop", "at most 16"]),
        ({"metadata": {"speeker": "ethan"}}, ["metadata.speeker", "'speaker'"]),
        ({"metadata": {"priority": 2000}}, ["metadata.priority", "-1000 to 1000"]),
    ],
)
async def test_bad_request(
    change: dict[str, Any], expected: list[str], client: AsyncPipe, cases: dict[str, Any]
) -> None:
    message = await fails(client, request_of(cases["text"], **change))
    for word in expected:
        assert word.lower() in message.lower()
    await still_answers(client, cases)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "smell", "path": "x"}]}],
        [{"role": "nobody", "content": "x"}],
    ],
)
async def test_malformed_messages(messages: Any, client: AsyncPipe, cases: dict[str, Any]) -> None:
    request = request_of(cases["text"])
    request.inputs = {"messages": messages}
    assert "messages" in await fails(client, request)
    await still_answers(client, cases)


async def test_a_config_out_of_range_is_named_at_start(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoints["a"], tmp_path / "broken")
    raw = json.loads((broken / "config.json").read_text())
    raw["thinker_config"]["text_config"]["num_hidden_layers"] = -3
    (broken / "config.json").write_text(json.dumps(raw))
    with pytest.raises(
        OmniError, match=r"text_config\.num_hidden_layers: must be a whole number from 1 to 1024, is -3"
    ) as caught:
        async with open_async(pipeline(broken)):
            pass
    assert "Traceback" not in str(caught.value)
