"""Tensor parallel ranks by the plans of transformers: the ids of one rank, shares of the weights, refusals by name."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from tiny_transformers import byte_tokenizer, causal, checkpoint, seers  # noqa: F401
from tiny_transformers.driving import replies, running
from transformers import AutoProcessor

from omni_core import open_async
from omni_core.api import ConfigError, IncomingMessage, OmniRequest, StagePayload
from omni_torch.api import EngineScheduler, TensorParallel
from omni_transformers.loading import load_model
from omni_transformers.pipeline import transformers
from omni_transformers.words.engine import Answers, create_answer
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_layers import Unfit
from omni_transformers.words.engine_model import EngineModel
from omni_transformers.words.engine_prompts import Prompt, captured
from omni_transformers.words.engine_ranks import without_layers
from omni_transformers.words.prepare import create_prepare

TEXTS = ["Hello", "What is a stage, and what is a pipeline?", "x" * 40, "1"]
PLAIN = ["LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM"]
MORE = [
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM",
    "GraniteForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "Cohere2ForCausalLM",
    "Olmo2ForCausalLM",
    "Glm4ForCausalLM",
    "Starcoder2ForCausalLM",
    "Ernie4_5ForCausalLM",
    "GPTNeoXForCausalLM",
    "DeepseekV3ForCausalLM",
]


class Group:
    """The ranks of a stage as threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self.parts[rank] = part.clone()
        self.barrier.wait(60)
        parts = list(self.parts)
        self.barrier.wait(60)
        return parts


class ThreadRank(TensorParallel):
    """One of them."""

    def __init__(self, group: Group, rank: int) -> None:
        super().__init__(rank, len(group.parts))
        self.group = group

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return partial.copy_(torch.stack(self.group.exchange(self.rank, partial)).sum(0))

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.group.exchange(self.rank, part), -1)

    def least(self, value: int, device: torch.device) -> int:
        return int(min(self.group.exchange(self.rank, torch.tensor(value))))


def ranks_of(make: Callable[[], Any], size: int = 2) -> list[EngineModel]:
    """Return the model of each rank."""
    group, models = Group(size), [make() for _ in range(size)]

    def fit(rank: int) -> EngineModel:
        try:
            return fitted(models[rank], ThreadRank(group, rank))
        except BaseException:
            group.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        return [each.result() for each in [threads.submit(fit, rank) for rank in range(size)]]


def ids_of(ranks: list[EngineModel], prompts: list[Prompt]) -> list[list[int]]:
    """Return the ids that all ranks answer with."""

    def answered(model: EngineModel) -> list[list[int]]:
        runner = Answers(model, byte_tokenizer(), {"max_new_tokens": 12, "temperature": 0.0})
        engine = EngineScheduler(runner, kv_blocks=200, block_size=4, chunk_size=16, max_batch_tokens=32)
        for number, prompt in enumerate(prompts):
            payload = StagePayload(str(number), OmniRequest(), prompt.sent())
            engine.inbox.put(IncomingMessage(payload.request_id, "new_request", payload))
        ids: dict[str, list[int]] = {}
        with running(engine):
            while len(ids) < len(prompts):
                message = engine.outbox.get(60)
                assert message is not None
                assert message.type != "error", message.data
                if message.type == "result":
                    ids[message.request_id] = message.data.token_ids
        return [ids[str(number)] for number in range(len(prompts))]

    with ThreadPoolExecutor(len(ranks)) as threads:
        first, *others = threads.map(answered, ranks)
    assert all(each == first for each in others)
    return first


def made(architecture: str, **more: Any) -> Any:
    torch.manual_seed(0)
    model = causal.model_of(architecture, **more)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.endswith("bias"):
                each.normal_(std=0.05)
    return model


def texts() -> list[Prompt]:
    return [Prompt(byte_tokenizer()(text)["input_ids"]) for text in TEXTS]


@pytest.mark.parametrize("architecture", [*PLAIN, *(pytest.param(each, marks=pytest.mark.full) for each in MORE)])
def test_two_ranks_have_the_ids_of_one(architecture: str) -> None:
    whole, ranks = made(architecture), ranks_of(partial(made, architecture))
    decoder = [sum(each.numel() for each in one.get_decoder().layers.parameters()) for one in (whole, ranks[0].model)]
    assert decoder[1] < 0.75 * decoder[0]
    found = ids_of([fitted(whole)], texts())
    assert len({number for ids in found for number in ids}) > 8, "the answers are too much alike to show anything"
    assert ids_of(ranks, texts()) == found


def test_a_model_that_sees() -> None:
    folder = str(checkpoint("Qwen2VLForConditionalGeneration"))
    picture = np.random.default_rng(0).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    processor = AutoProcessor.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=[text], images=[picture], return_tensors="pt")

    make = partial(load_model.__wrapped__, folder)
    tied = make()
    tied.lm_head.weight = tied.get_input_embeddings().weight
    eyes = without_layers(tied, "cpu")
    prompt = captured(eyes, dict(inputs))
    assert not any(each.numel() for each in eyes.module.layers.parameters())
    assert prompt.embeds is not None
    whole, ranks = fitted(make()), ranks_of(make)
    assert not any(each.numel() for each in ranks[0].model.model.visual.parameters())
    assert ids_of(ranks, [prompt, *texts()]) == ids_of([whole], [captured(whole.decoder, dict(inputs)), *texts()])


def test_four_ranks_repeat_two_key_value_heads() -> None:
    biased = {"attention_bias": True, "mlp_bias": True}
    make = partial(
        made, "LlamaForCausalLM", vocab_size=266, **biased
    )  # which four do not divide: embeddings and head stay whole
    whole, ranks = make(), ranks_of(make, 4)
    assert [each.kv_layout.heads for each in ranks] == [1] * 4
    own, parts = whole.model.layers[0].self_attn.k_proj, [each.model.model.layers[0].self_attn.k_proj for each in ranks]
    assert torch.equal(parts[1].weight, own.weight[:16])
    assert torch.equal(parts[2].bias, own.bias[16:])
    assert torch.equal(ranks[3].model.lm_head.weight, whole.lm_head.weight)
    assert ids_of(ranks, texts()) == ids_of([fitted(whole)], texts())


def test_tied_embeddings_stay_one_tensor() -> None:
    for each in ranks_of(partial(made, "Gemma2ForCausalLM")):
        assert each.model.lm_head.weight is each.model.model.embed_tokens.weight
        assert len(each.model.lm_head.weight) == 132


@pytest.mark.parametrize(
    ("architecture", "config", "size", "reason"),
    [
        (
            "StableLmForCausalLM",
            {},
            2,
            "transformers has no tensor parallel plan for the decoder of StableLmForCausalLM; use tp_size 1",
        ),
        ("GptOssForCausalLM", {}, 2, "no tensor parallel plan for the decoder of GptOss"),  # it has one for its head
        ("LlamaForCausalLM", {}, 3, "3 does not divide the model's 4 attention heads"),
        (
            "LlamaForCausalLM",
            {"hidden_size": 96, "num_attention_heads": 6},
            3,
            "3 ranks cannot share the 2 key/value heads of model.layers.0.self_attn evenly",
        ),
        (
            "LlamaForCausalLM",
            {"intermediate_size": 127},
            2,
            "cannot share dimension 0 of 'model.layers.0.mlp.gate_proj.weight', 127 long",
        ),
        (
            "MixtralForCausalLM",
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            3,
            "of 'model.layers.0.mlp.experts.gate_up_proj', 128 long",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    architecture: str, config: dict[str, Any], size: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^tp_size: .*{re.escape(reason)}"):
        fitted(causal.model_of(architecture, **config), TensorParallel(0, size))


def test_a_style_that_is_not_known_is_refused_by_name() -> None:
    model = causal.model_of("LlamaForCausalLM")
    model.tp_plan["model.layers.*.mlp.up_proj"] = "sequence_parallel"
    with pytest.raises(
        ConfigError, match=r"splits model.layers.0.mlp.up_proj \(Linear\) by 'sequence_parallel', which is not known"
    ):
        fitted(model, TensorParallel(0, 2))


def test_ranks_that_see_different_memory_have_caches_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([2**22, 2**20])
    monkeypatch.setattr("omni_torch.engine.cache_size.available_memory", lambda: next(free))
    ranks = ranks_of(partial(made, "LlamaForCausalLM"))
    runners = [Answers(each, byte_tokenizer(), {}) for each in ranks]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(EngineScheduler, runners)
    assert first.statistics()["total_blocks"] == second.statistics()["total_blocks"]


class NoSums(TensorParallel):
    """A rank that forgets the others."""

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return partial

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat([part] * self.size, -1)


def test_a_wrong_split_is_noticed() -> None:
    """The logits of all ranks together are compared with those of the whole model."""
    with pytest.raises(Unfit, match="its logits are not those of its own forward"):
        fitted(made("LlamaForCausalLM"), NoSums(0, 2))


async def test_processes_of_ranks_answer_as_one_does() -> None:
    """With a picture, whose encoder is in a process of its own, and with random numbers of no seed, which ranks must agree on."""
    folder = str(checkpoint("Qwen2VLForConditionalGeneration"))
    picture = np.random.default_rng(0).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    parts = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]

    def asked(content: Any, **params: Any) -> OmniRequest:
        return OmniRequest(
            {"messages": [{"role": "user", "content": content}]}, {"answer": {"max_new_tokens": 12, **params}}
        )

    greedy = [asked(parts, temperature=0.0), *(asked(text, temperature=0.0) for text in TEXTS)]
    prepare, payloads = create_prepare(folder), [StagePayload(str(number), each) for number, each in enumerate(greedy)]
    with running(create_answer(folder)) as scheduler:
        alone = replies(scheduler, [evolve(each, data=prepare.prompt(each)) for each in payloads])
    async with open_async(transformers(folder, tp_size=2)) as pipe:
        assert set(pipe.process_ids) == {"prepare", "answer_tp0", "answer_tp1"}
        drawn = [asked("Hello", temperature=5.0)] * 3
        both = await asyncio.gather(*(pipe.submit(each) for each in [*greedy, *drawn]))
    ids = [each["answer"].token_ids for each in both]
    assert ids[: len(greedy)] == [result.token_ids for _, result in alone]
    assert len(set(map(tuple, ids[len(greedy) :]))) > 1
