"""Prompts with media on the engine: what the model's own forward gives its decoder, and ids of ``generate()``."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from tiny_transformers import byte_tokenizer, checkpoint, examples, further_seers, seers
from tiny_transformers.driving import running

from omni_core.api import ARRequest, IncomingMessage, OmniRequest, StagePayload
from omni_media.api import Limits
from omni_torch.api import EngineScheduler
from omni_transformers.architectures import table
from omni_transformers.loading import load_model, load_processor
from omni_transformers.words.adapters import NEEDS
from omni_transformers.words.engine import Answers
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_model import EngineModel
from omni_transformers.words.engine_prompts import captured
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import placed

assert further_seers
assert seers

TEXT = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258, "tie_word_embeddings": False,
}  # fmt: skip
MARK, START, END = 260, 261, 262
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
IDS = {"image_token_id": MARK, "vision_start_token_id": START, "vision_end_token_id": END, "video_token_id": 263}


def qwen2_audio() -> Any:
    audio = {
        "model_type": "qwen2_audio_encoder", "num_mel_bins": 8, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "max_source_positions": 20,
    }  # fmt: skip
    text = {**TEXT, "model_type": "qwen2"}
    return transformers.Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_id=MARK, **_ends())


def llava() -> Any:
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 8, "patch_size": 4,
    }  # fmt: skip
    text = {**TEXT, "model_type": "mistral", "sliding_window": 6}
    return transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=MARK, **_ends())


def qwen2_vl() -> Any:
    vision = {**VISION, "embed_dim": 32, "hidden_size": 32}
    return transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": ROPE}, vision_config=vision, **IDS, **_ends()
    )


def qwen3_vl() -> Any:
    vision = {
        **VISION,
        "intermediate_size": 64,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 16,
    }
    text = {**TEXT, "head_dim": 8, "rope_parameters": ROPE}
    return transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **IDS, **_ends())


def _ends() -> dict[str, Any]:
    return {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}


MODELS: dict[str, tuple[str, Any]] = {
    "Qwen2AudioForConditionalGeneration": ("audio", qwen2_audio),
    "LlavaForConditionalGeneration": ("image", llava),
    "Qwen2VLForConditionalGeneration": ("grid", qwen2_vl),
    "Qwen3VLForConditionalGeneration": ("grid", qwen3_vl),
}


def made(architecture: str) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(MODELS[architecture][1]()).eval().requires_grad_(False)
    for each in model.parameters():
        if each.dim() > 1:
            each.normal_(0, 0.3)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 258, 256
    return model


@cache
def pair(architecture: str) -> tuple[Any, EngineModel]:
    """Return a model, and its equal on the engine."""
    return made(architecture), fitted(made(architecture))


def inputs(kind: str, seed: int, words: str) -> dict[str, torch.Tensor]:
    """Return the inputs of a forward: text, a piece of media, text."""
    random = torch.Generator().manual_seed(seed)
    media: dict[str, torch.Tensor]
    if kind == "audio":
        count = 3 + seed % 3
        heard = torch.zeros(1, 40, dtype=torch.long)
        heard[:, : 4 * count] = 1
        media = {"input_features": torch.randn(1, 8, 40, generator=random), "feature_attention_mask": heard}
    elif kind == "image":
        count, media = 4, {"pixel_values": torch.randn(1, 3, 8, 8, generator=random)}
    else:
        rows, columns = 4, 4 + 2 * (seed % 3)
        count = rows * columns // 4
        pixels = torch.randn(rows * columns, 3 * 2 * 4 * 4, generator=random)
        media = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    ids = torch.tensor([[*b"user: ", START, *[MARK] * count, END, *words.encode()]])
    if kind == "grid":
        media["mm_token_type_ids"] = (ids == MARK).int()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}


class Recording(Answers):
    """Keeps the logits of the first token of each text."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.first: dict[str, torch.Tensor] = {}

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        for row, request in zip(logits, requests, strict=True):
            self.first.setdefault(request.request_id, row.clone())
        return super().choose(logits, requests)


def answered(
    model: EngineModel, asked: list[dict[str, torch.Tensor]], again: bool = False, runner: Answers | None = None
) -> list[list[int]]:
    """Return the ids of requests that are computed together, in small chunks; ``again``: a second time, from the prefix cache."""
    runner = runner or Answers(model, byte_tokenizer(), {"max_new_tokens": 12})
    engine = EngineScheduler(runner, kv_blocks=200, block_size=4, chunk_size=5, max_batch_tokens=16)
    ids: dict[str, list[int]] = {}
    with running(engine):
        for turn in range(2 if again else 1):
            for number, each in enumerate(asked):
                prompt = captured(model.decoder, each, sees_blocks=model.sees_blocks)
                payload = StagePayload(f"{turn}.{number}", OmniRequest(), prompt.sent())
                engine.inbox.put(IncomingMessage(payload.request_id, "new_request", payload))
            while len(ids) < (turn + 1) * len(asked):
                message = engine.outbox.get(60)
                assert message is not None
                assert message.type != "error", message.data
                if message.type == "result":
                    ids[message.request_id] = message.data.token_ids
        if again:
            assert engine.statistics()["reused_positions"] > 0
            assert all(ids[f"1.{number}"] == ids[f"0.{number}"] for number in range(len(asked)))
    return [ids[f"0.{number}"] for number in range(len(asked))]


@pytest.mark.parametrize("architecture", MODELS)
def test_ids_with_media_equal_those_of_generate(architecture: str) -> None:
    """Three requests with media and one with text alone, together."""
    model, engine = pair(architecture)
    kind = MODELS[architecture][0]
    asked = [inputs(kind, seed, words) for seed, words in enumerate(["What?", "Say what it is.", "x"])]
    text = torch.tensor([[*b"user: Hello"]])
    asked.append({"input_ids": text, "attention_mask": torch.ones_like(text)})
    found = answered(engine, asked, again=True)
    for each, ids in zip(asked, found, strict=True):
        with torch.inference_mode():
            whole = model.generate(**each, do_sample=False, max_new_tokens=12)[0].tolist()
        assert ids == whole[each["input_ids"].shape[1] :]
    assert len({tuple(ids) for ids in found}) == len(found), "the answers are too much alike to show anything"


@pytest.mark.parametrize(
    "name",
    [
        "Gemma3ForConditionalGeneration",  # a picture, in windows too
        "PaliGemmaForConditionalGeneration",  # the whole prompt
        pytest.param("Molmo2ForConditionalGeneration", marks=pytest.mark.full),  # all pictures
    ],
)
def test_positions_that_see_each_other_are_computed_together(name: str) -> None:
    """In smaller chunks than a picture has positions, and with what other prompts of the same picture have left in the cache."""
    folder = str(checkpoint(name))
    load_model.cache_clear()
    engine, prompts = fitted(load_model(folder)), Prompts(load_processor(folder), table()[name].inputs, name, Limits())
    words = [(0, "What is it?"), (0, "What is this?"), (1, "What is it?")]
    contents = [[examples.part("image", number), {"type": "text", "text": text}] for number, text in words]
    if name not in NEEDS:
        contents = [each[::-1] for each in contents]  # near the end, or windows would hide it from the answer
        contents += [[examples.part("image", 1), *contents[0]], [{"type": "text", "text": "Hello"}]]
    asked = [placed(prompts.inputs(examples.asked(each)), engine.model) for each in contents]
    runner = Recording(engine, byte_tokenizer(), {"max_new_tokens": 12})
    found = answered(engine, asked, again=True, runner=runner)
    assert found == [examples.reference(name, each) for each in contents]
    plain = getattr(transformers, name).from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = [plain(**each).logits[0, -1] for each in asked]
    for turn in range(2):
        for number, each in enumerate(expected):
            torch.testing.assert_close(runner.first[f"{turn}.{number}"], each, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["LlavaForConditionalGeneration", "Qwen3VLForConditionalGeneration"])
def test_equal_media_have_equal_digests_and_others_do_not(architecture: str) -> None:
    engine = pair(architecture)[1]
    kind = MODELS[architecture][0]
    one, same, other = (
        captured(engine.decoder, inputs(kind, seed, words)).content for seed, words in [(0, "a"), (0, "b"), (3, "a")]
    )
    [span] = one
    assert [(each.start, each.end) for each in one] == [(7, 7 + 4)]
    assert same == [span]
    assert other[0].digest != span.digest
