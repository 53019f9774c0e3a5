"""The models that the engine computes, and the reasons why it does not compute the others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from tiny_transformers import causal, checkpoint, seers
from tiny_transformers.driving import replies, running, say
from transformers.masking_utils import blockwise_overlay, create_causal_mask

from omni_core.api import ConfigError
from omni_torch.api import EngineScheduler
from omni_transformers.loading import load_model
from omni_transformers.words.blocks import blocks_of
from omni_transformers.words.engine import create_answer
from omni_transformers.words.engine_fit import backend_of, fitted
from omni_transformers.words.engine_layers import Unfit
from omni_transformers.words.prepare import create_prepare

assert seers


def ids_of(model: Any) -> list[int]:
    ids = torch.arange(1, 30).unsqueeze(0)
    with torch.inference_mode():
        found: list[int] = model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()
    return found


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("Llama4ForCausalLM", "layers 0, 1: attention in chunks"),
        ("Lfm2ForCausalLM", "layer 0: conv"),
        pytest.param(
            "GPTJForCausalLM",
            "layers 0, 1: no attention of transformers' table",
            marks=pytest.mark.skipif(Version(transformers.__version__) >= Version("5.24"), reason="it is in the table"),
        ),
        ("BloomForCausalLM", "its decoder takes no position_ids"),
    ],
)
def test_a_model_of_another_kind_is_told_by_its_layers_and_stays_as_it_was(architecture: str, reason: str) -> None:
    model = causal.model_of(architecture)
    before = ids_of(model)
    assert backend_of(model) == ("steps", [reason])
    assert ids_of(model) == before


def test_an_encoder_beside_the_decoder_is_told() -> None:
    config = transformers.T5Config(vocab_size=264, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)
    found = backend_of(transformers.T5ForConditionalGeneration(config))
    assert found == ("steps", ["it has an encoder and a decoder that attends to it"])


def test_settings_that_only_generate_honours_are_told() -> None:
    model = causal.model_of("LlamaForCausalLM")
    model.generation_config.no_repeat_ngram_size = 3
    model.generation_config.num_beams = 4  # steps writes one text too
    assert backend_of(model) == ("steps", ["its generation config sets no_repeat_ngram_size"])
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    longer = causal.model_of("LlamaForCausalLM", rope_parameters=rope)
    assert "(dynamic)" in backend_of(longer)[1][0]


@pytest.mark.parametrize(
    ("architecture", "windows"),
    [
        ("MistralForCausalLM", [6, 6]),
        ("Qwen2ForCausalLM", [None, 6]),
        pytest.param("Gemma3ForCausalLM", [6, None], marks=pytest.mark.full),
        pytest.param("Qwen2MoeForCausalLM", [6, None], marks=pytest.mark.full),  # says it by its mask alone
    ],
)
def test_windows_are_those_of_the_masks(architecture: str, windows: list[int | None]) -> None:
    layout = fitted(causal.model_of(architecture)).kv_layout
    assert [form and form.window for form in layout.forms] == windows


def test_a_window_that_holds_all_positions_is_none() -> None:
    whole, less = (
        fitted(causal.model_of("MistralForCausalLM", sliding_window=size, max_position_embeddings=128)).kv_layout.forms
        for size in (128, 127)
    )
    assert whole == ()
    assert [form and form.window for form in less] == [127, 127]
    folder = str(causal.checkpoint("MistralForCausalLM"))
    with pytest.raises(ConfigError, match="max_context: 1000000 is more than the 131072 positions"):
        create_answer(folder, max_context=1_000_000)


def test_caps_and_sinks_are_found() -> None:
    forms = fitted(causal.model_of("Gemma2ForCausalLM")).kv_layout.forms
    assert [(form.window, form.soft_cap) for form in forms if form] == [(6, 2.0), (None, 2.0)]
    model = causal.model_of("GptOssForCausalLM")
    sinks = [form.sinks for form in fitted(model).kv_layout.forms if form]
    assert all(each is layer.self_attn.sinks for each, layer in zip(sinks, model.model.layers, strict=True))


def test_a_head_of_more_than_a_matrix_is_computed_by_the_models_own_code() -> None:
    assert fitted(causal.model_of("LlamaForCausalLM")).plain_head
    model = causal.model_of("CohereForCausalLM")
    engine = fitted(model)
    hidden = torch.randn(3, 64)
    assert not engine.plain_head
    assert torch.allclose(engine.compute_logits(hidden), model.lm_head(hidden) * 0.3)


class Shifted(torch.nn.Module):
    """A feed-forward that sees the token before: something beside attention that mixes tokens."""

    def __init__(self, own: torch.nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.own(x + x.roll(1, 1))
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_whose_logits_differ_is_refused(dtype: torch.dtype) -> None:
    model = causal.model_of("LlamaForCausalLM").to(dtype)
    model.model.layers[1].mlp = Shifted(model.model.layers[1].mlp)
    before = ids_of(model)
    with pytest.raises(Unfit, match="its logits are not those of its own forward"):
        fitted(model)
    assert ids_of(model) == before


def test_the_backend_asked_for_is_taken_or_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    folder = str(causal.checkpoint("Lfm2ForCausalLM"))
    with pytest.raises(
        ConfigError, match=r"backend: Lfm2ForCausalLM does not fit the engine: layer 0: conv; choose steps"
    ):
        create_answer(folder, backend="engine")
    with caplog.at_level(logging.WARNING):
        prepare = create_prepare(folder)
        scheduler = create_answer(folder)
    assert [each.getMessage() for each in caplog.records if "engine" in each.getMessage()] == [
        "Lfm2ForCausalLM does not fit the engine: layer 0: conv; it computes by steps"
    ]
    assert not isinstance(scheduler, EngineScheduler)
    asked = say("Hello", answer={"max_new_tokens": 5})
    with running(prepare):
        [(_, handed_on)] = replies(prepare, [asked])
    assert handed_on is asked
    with running(scheduler):
        [(_, result)] = replies(scheduler, [asked])
    assert len(result.token_ids) == 5
    fits = str(causal.checkpoint("LlamaForCausalLM"))
    assert isinstance(create_answer(fits, kv_blocks=8), EngineScheduler)
    assert not isinstance(create_answer(fits, backend="steps"), EngineScheduler)


def test_a_model_that_fits_is_told_and_stays_as_it_was() -> None:
    model = causal.model_of("Gemma2ForCausalLM")
    before = ids_of(model)
    assert backend_of(model) == ("engine", [])
    assert ids_of(model) == before


def test_a_model_in_bfloat16_fits() -> None:
    """Its logits are as near to those in float32 as its own; its weights stay as they were."""
    model = causal.model_of("GptOssForCausalLM").bfloat16()
    before = {name: each.clone() for name, each in model.named_parameters()}
    assert fitted(model).kv_layout.dtype == torch.bfloat16
    after = dict(model.named_parameters())
    assert all(after[name].dtype == each.dtype and torch.equal(after[name], each) for name, each in before.items())


def test_what_a_decoder_gets_with_media_alone_is_told_when_it_is_loaded() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 4]}
    text = {
        **causal.WIDE,
        "rope_parameters": rope,
        "moe_num_experts": 4,
        "moe_intermediate_size": [32, 32],
        "moe_k": 2,
        **causal.IDS,
    }
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64}
    config = transformers.Ernie4_5_VLMoeConfig(text_config=text, vision_config=vision)
    model = transformers.Ernie4_5_VLMoeForConditionalGeneration(config).eval()
    assert "its decoder takes moe_mm_token_type_ids" in backend_of(model)[1]


def test_masks_of_media_that_are_not_those_of_blocks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in some layers, by the load; blocks that a window cuts, by the request."""
    model = load_model(str(checkpoint("Gemma3ForConditionalGeneration")))
    assert backend_of(model) == ("engine", [])

    def make(config: Any, token_type_ids: torch.Tensor, **given: Any) -> None:
        shared = {"config": config.get_text_config(), **{name: given[name] for name in MASKS}}
        blocks = torch.where(token_type_ids == 1, 0, -1)
        create_causal_mask(**shared)
        create_causal_mask(**shared, or_mask_function=blockwise_overlay(blocks))

    long = torch.ones(1, 20, dtype=torch.long)
    with pytest.raises(
        RuntimeError, match="it makes masks for its media that the engine has not; choose backend=steps"
    ):
        blocks_of(model, {"input_ids": long, "token_type_ids": long})
    assert blocks_of(model, {"input_ids": long, "token_type_ids": long * (torch.arange(20) < 16)}) is not None
    monkeypatch.setattr(type(model), "create_masks_for_generate", staticmethod(make))
    assert backend_of(model) == (
        "steps",
        ["it makes masks for its media that the engine has not; choose backend=steps"],
    )


MASKS = "inputs_embeds", "attention_mask", "past_key_values", "position_ids"


class HandsOn(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """Its ``generate()`` looks at its inputs, and leaves them as they are."""

    def generate(self, *given: Any, attention_mask: Any = None, **named: Any) -> Any:
        return super().generate(*given, attention_mask=attention_mask, **named)


class Changes(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """Its ``generate()`` reads another text."""

    def generate(self, input_ids: Any, **named: Any) -> Any:
        return super().generate(input_ids.flip(1), **named)


def test_a_generate_of_its_own_is_told_unless_it_hands_its_inputs_on() -> None:
    config = causal.model_of("LlamaForCausalLM").config
    assert backend_of(HandsOn(config).eval()) == ("engine", [])
    assert backend_of(Changes(config).eval()) == ("steps", ["Changes generates by code of its own"])


def test_weights_that_are_no_numbers_are_told() -> None:
    model = causal.model_of("LlamaForCausalLM")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="its logits are not finite; download the checkpoint again"):
        fitted(model)
