"""The pipeline equals the model in plain PyTorch, alone and beside others; every part keeps its contract; bad requests are refused."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from reference import drawn
from sketch.checkpoint import write_checkpoint
from sketch.drawer import create_drawer
from sketch.pipeline import sketch
from sketch.reader import create_reader

from omni_core.api import (
    AsyncPipe,
    ConfigError,
    ImageChunk,
    ImageResult,
    IncomingMessage,
    InvalidRequestError,
    OmniRequest,
    PipelineConfig,
    Scheduler,
    StagePayload,
    open_async,
)
from omni_testing import ModelRunnerConformance, PipelineConformance, PluginConformance, StepSchedulerConformance
from omni_torch.api import ARModelRunner, KeyValues


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)


MIXED: list[dict[str, Any]] = [
    {"text": "a fox", "steps": 4},
    {"text": "a fox", "image": picture(0), "steps": 5},
    {"text": "a house beside a lake, at night, with a boat", "width": 16, "height": 48, "steps": 7},
    {"text": "the same in green", "image": picture(1), "width": 16, "height": 48, "text_guidance": 2.5},
    {"text": "a fox", "thoughts": 6, "steps": 3},
    {"text": "sky", "image": picture(0), "image_guidance": 1.0, "steps": 6, "thoughts": 20},
    {"text": "sea", "text_guidance": 1.0, "steps": 1, "width": 64},
    {"text": "a fox", "image": picture(2), "text_guidance": 0.0, "image_guidance": 1.5, "steps": 4},
]
"""Requests of several sizes, numbers of steps, lengths and guidances."""


def asked(given: dict[str, Any], seed: int, **params: Any) -> OmniRequest:
    content: list[dict[str, Any]] = [{"type": "text", "text": given["text"]}]
    if "image" in given:
        content.append({"type": "image", "image": given["image"]})
    own = {name: value for name, value in given.items() if name not in ("text", "image")}
    return OmniRequest({"messages": [{"role": "user", "content": content}]}, {**own, "seed": seed, **params})


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=1)


@pytest.fixture(scope="session")
def expected(model: Path) -> list[torch.Tensor]:
    return [drawn(model, {**each, "seed": number}) for number, each in enumerate(MIXED)]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)


async def found(client: AsyncPipe, number: int) -> torch.Tensor:
    samples: torch.Tensor = (await client.submit(asked(MIXED[number], number, samples=True)))["draw"]["samples"]
    return samples


async def test_in_one_process_it_is_the_model_in_plain_pytorch(model: Path, expected: list[torch.Tensor]) -> None:
    async with open_async(sketch(str(model), processes="one")) as client:
        together = await asyncio.gather(*(found(client, number) for number in range(len(MIXED))))
        alone = [await found(client, number) for number in range(len(MIXED))]
        reply = (await client.submit(asked(MIXED[1], 1)))["draw"]
        events = [event.data async for event in client.stream(asked({"text": "a fox", "steps": 3}, 1))]
        await check_refusals(client)
    for number, samples in enumerate(expected):
        assert close(together[number], samples), number
        assert close(alone[number], samples), number
    assert isinstance(reply, ImageResult)
    shown = ((expected[1] / 2 + 0.5).clamp(0, 1) * 255).round()
    assert (torch.from_numpy(reply.pixels.astype(np.float32)) - shown).abs().max() <= 1
    assert reply.seeds == [1]
    assert [(each.step, each.steps) for each in events if isinstance(each, ImageChunk)] == [(1, 3), (2, 3), (3, 3)]


async def check_refusals(client: AsyncPipe) -> None:
    """Check that what cannot be drawn is refused before admission, and that a part that fails fails its request."""
    two = [{"type": "text", "text": "a fox"}, *({"type": "image", "image": picture(seed)} for seed in range(2))]
    for content, message in (
        ("  ", "messages: no text"),
        (two, "messages: 2 images; one can be read"),
        ("a" * 513, "messages: the text has 513 bytes; 512 are allowed"),
        ([{"type": "audio"}], r"messages\[0\]\.content\[0\]\.type: this pipeline takes no 'audio'"),
    ):
        with pytest.raises(InvalidRequestError, match=message) as refused:
            await client.submit(OmniRequest({"messages": [{"role": "user", "content": content}]}))
        assert refused.value.stage is None, "it was admitted"
    broken = {"text": "a fox", "image": np.zeros((3, 4))}
    with pytest.raises(InvalidRequestError, match=r"in the part '(all|no_text)': .* is float64 \[3, 4\]") as failed:
        await client.submit(asked(broken, 1))
    assert failed.value.stage == "read"


async def test_two_ranks_read_what_one_reads(model: Path, expected: list[torch.Tensor]) -> None:
    async with open_async(sketch(str(model), tp_size=2)) as client:
        together = await asyncio.gather(*(found(client, number) for number in range(len(MIXED))))
    for number, samples in enumerate(expected):
        assert close(together[number], samples), number


@pytest.mark.parametrize(
    "change",
    [
        {"text": "a cat"},
        {"image": picture(5)},
        {"thoughts": 3},
        {"text_guidance": 2.0},
        {"image_guidance": 3.0},
        {"steps": 6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_a_request_says_is_seen(
    model: Path, expected: list[torch.Tensor], change: dict[str, Any]
) -> None:
    """Parity would hold for a model that looks away, too."""
    other = drawn(model, {**MIXED[1], "seed": 1, **change})
    assert (other - expected[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"text_guidance": math.nan}, r"params\.text_guidance: must be a number, 0 to 100, is nan"),
        ({"image_guidance": math.inf}, r"params\.image_guidance: must be a number, 0 to 100, is inf"),
        ({"width": 33}, r"params\.width: must be a multiple of 4, 4 to 256, is 33"),
        ({"steps": 10**9}, r"params\.steps: must be an integer, 1 to 1000"),
        ({"steps": 0}, r"params\.steps: must be an integer, 1 to 1000"),
        ({"thoughts": -1}, r"params\.thoughts: must be an integer, 0 to 256"),
        ({"text_guidence": 2.0}, r"params\.text_guidence: no such parameter; did you mean 'text_guidance'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_parameters_are_refused_by_name(params: dict[str, Any], message: str) -> None:
    from sketch.interface import INTERFACE

    with pytest.raises(InvalidRequestError, match=message):
        INTERFACE.check_params(params)


def test_a_folder_without_the_model_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkpoint of sketch"):
        create_drawer(str(tmp_path))
    with pytest.raises(ConfigError, match="--option proceses"):
        sketch("none", proceses="one")


class TestPlugin(PluginConformance):
    entry_point = "sketch"
    targets_need = ("torch", "safetensors", "PIL")


class TestReader(ModelRunnerConformance):
    """Every third prompt has an image; the results are keys and values."""

    @pytest.fixture(autouse=True)
    def _model(self, model: Path) -> None:
        self.model = model

    def make(self) -> ARModelRunner:
        return create_reader(str(self.model))

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        image = {"image": picture(number)} if number % 3 == 1 else None
        data = {"text": "a fox " * (1 + number), "image": image, "sampling": sampling}
        return [reading(request_id, data)]

    def bad(self, request_id: str) -> list[IncomingMessage]:
        return [reading(request_id, {"text": "a fox", "image": {"data": b"no image"}, "sampling": {}})]


def reading(request_id: str, data: dict[str, Any]) -> IncomingMessage:
    payload = StagePayload(request_id, OmniRequest(), data)
    return IncomingMessage(request_id, "new_request", payload, None, None, payload.request)


class TestPipeline(PipelineConformance):
    """In separate processes, eight requests one after the other and together; their seeds are their numbers."""

    @pytest.fixture(autouse=True)
    def _model(self, model: Path, expected: list[torch.Tensor]) -> None:
        self.model, self.expected = model, expected

    def config(self) -> PipelineConfig:
        return sketch(str(self.model))

    def requests(self) -> list[OmniRequest]:
        return [asked(each, number, samples=True) for number, each in enumerate(MIXED)]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        wanted = self.expected[one["draw"]["seed"]]
        return close(one["draw"]["samples"], wanted) and close(other["draw"]["samples"], wanted)


class TestDrawing(StepSchedulerConformance):
    @pytest.fixture(autouse=True)
    def _model(self, model: Path) -> None:
        self.model = model

    def make(self) -> Scheduler:
        return create_drawer(str(self.model), max_batch_size=4)

    def message(self, request_id: str, data: Any) -> IncomingMessage:
        message = super().message(request_id, data["read"])
        request = OmniRequest(params={"seed": 1, "samples": True, **data["params"]})
        return evolve(message, data=evolve(message.data, request=request), request=request)

    def good(self, number: int) -> Any:
        read = {"all": handed_over(5 + number % 3)} | ({"no_text": handed_over(1)} if number % 2 else {})
        return {"read": read, "params": {"steps": 2 + number % 4}}

    def bad(self) -> Any:
        return {"read": {"all": {"key_values": None}}, "params": {}}

    def long(self) -> Any:
        return {"read": {"all": handed_over(5)}, "params": {"steps": 1000}}

    def same(self, one: Any, other: Any) -> bool:
        if isinstance(one, list):
            return len(one) == len(other)
        if "samples" in one:
            return torch.allclose(one["samples"], other["samples"], atol=1e-5)
        pairs = ((one["read"][role]["key_values"], other["read"][role]["key_values"]) for role in one["read"])
        return all(torch.equal(mine.keys, theirs.keys) for mine, theirs in pairs)


def handed_over(positions: int) -> dict[str, KeyValues]:
    """Return what the reader would hand over of so many positions."""
    generator = torch.Generator().manual_seed(positions)
    keys, values = (torch.randn(2, positions, 2, 8, generator=generator) for _ in range(2))
    hidden = torch.randn(positions, 32, generator=generator)
    return {"key_values": KeyValues(keys, values, [0] * positions, positions, hidden)}
