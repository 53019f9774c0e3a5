"""Decoders of the common form by the kernels of omni-kernels-cpu: recognised by their modules, with the ids of ``generate()``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_transformers import byte_tokenizer, causal
from tiny_transformers.driving import running

pytest.importorskip("omni_kernels_cpu")

from omni_core.api import IncomingMessage, OmniRequest, StagePayload
from omni_kernels_cpu.library import problem
from omni_torch.api import EngineScheduler
from omni_torch.operations.installed_kernels import install
from omni_transformers.words.engine import Answers
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_model import EngineModel
from omni_transformers.words.engine_prompts import Prompt

pytestmark = pytest.mark.skipif(problem() is not None, reason=str(problem()))

PROMPTS = [list(b"What is a stage?"), list(b"x"), list(b"Hello, what is it, and how many are there?")]
COMMON = ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Ernie4_5ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"]


def made(architecture: str, **more: Any) -> Any:
    torch.manual_seed(0)
    return causal.model_of(architecture, **more)


def ids_of(model: EngineModel) -> tuple[list[list[int]], dict[str, float]]:
    """Return the ids of requests computed together, and the engine's counters."""
    engine = EngineScheduler(Answers(model, byte_tokenizer(), {"max_new_tokens": 16}), kv_blocks=64, chunk_size=8)
    found: dict[str, list[int]] = {}
    with running(engine):
        for number, ids in enumerate(PROMPTS):
            payload = StagePayload(str(number), OmniRequest(), Prompt(ids).sent())
            engine.inbox.put(IncomingMessage(str(number), "new_request", payload))
        while len(found) < len(PROMPTS):
            message = engine.outbox.get(60)
            assert message is not None
            assert message.type != "error", message.data
            if message.type == "result":
                found[message.request_id] = message.data.token_ids
    return [found[str(number)] for number in range(len(PROMPTS))], engine.statistics()


def generated(model: Any) -> list[list[int]]:
    found = []
    for ids in PROMPTS:
        inputs = torch.tensor([ids])
        with torch.inference_mode():
            whole = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=16)
        found.append(whole[0, len(ids) :].tolist())
    return found


@pytest.mark.parametrize(
    "architecture", [*COMMON[:3], *(pytest.param(each, marks=pytest.mark.full) for each in COMMON[3:])]
)
def test_steps_by_kernels_have_the_ids_of_generate(architecture: str, kernels: dict[str, Any]) -> None:
    install(kernels)
    engine = fitted(made(architecture))
    assert engine.kernels is not None
    found, counters = ids_of(engine)
    assert counters["kernel_steps"] == counters["steps"] > 0
    assert found == generated(made(architecture))


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("GraniteForCausalLM", {}),  # scores and residuals are scaled
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),  # has the modules, and a layer without positions
        ("GptOssForCausalLM", {}),
        pytest.param("LlamaForCausalLM", {"hidden_act": "gelu"}, marks=pytest.mark.full),
        pytest.param("OPTForCausalLM", {}, marks=pytest.mark.full),
    ],
)
def test_other_decoders_are_computed_by_their_modules(
    architecture: str, more: dict[str, Any], kernels: dict[str, Any]
) -> None:
    install(kernels)
    engine = fitted(made(architecture, **more))
    assert engine.kernels is None
    assert ids_of(engine)[0] == generated(made(architecture, **more))


def test_in_bfloat16_too_a_decoder_is_compared(kernels: dict[str, Any]) -> None:
    install(kernels)
    assert fitted(made("LlamaForCausalLM").bfloat16()).kernels is not None
    assert fitted(made("SmolLM3ForCausalLM", no_rope_layers=[1, 0]).bfloat16()).kernels is None


def test_the_model_goes_on_with_the_joined_weights(kernels: dict[str, Any]) -> None:
    """They are kept once."""
    model = made("LlamaForCausalLM")
    install(kernels)
    fitted(model)
    attention = model.model.layers[0].self_attn
    first, second = attention.q_proj.weight, attention.k_proj.weight
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    model.get_decoder().set_attn_implementation("sdpa")
    assert generated(model) == generated(made("LlamaForCausalLM"))
