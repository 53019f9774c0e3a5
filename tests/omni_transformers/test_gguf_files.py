"""GGUF files as checkpoints: the same ids as transformers has on the values of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_transformers import checkpoint, writers
from tiny_transformers.driving import replies, running, say
from transformers import AutoTokenizer

from omni_core.api import ConfigError
from omni_core.client.source import source_class
from omni_torch.api import Int4WeightLinear, Int8GroupsLinear
from omni_torch.operations.installed_kernels import install
from omni_transformers.gguf_files import folder_of
from omni_transformers.loading import load_model
from omni_transformers.pipeline import interface
from omni_transformers.words.engine import Answers
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.steps import create_writer

gguf: Any = pytest.importorskip("gguf")
assert writers

KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "vocab_size": "vocab_size",
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def write(path: Path, kind: str, architecture: str = "llama") -> Any:
    """Write the tiny Llama as llama.cpp's converter does; return transformers' model with the values of the file."""
    folder = checkpoint("LlamaForCausalLM")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    writer = gguf.GGUFWriter(path, architecture)
    for key, name in KEYS.items():
        writer.add_uint32(f"{architecture}.{key}", getattr(model.config, name))
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", model.config.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", 10_000.0)
    tokens = [*tokenizer.convert_ids_to_tokens(range(len(tokenizer))), "ab"]  # a merge makes it
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if each.startswith("<") and len(each) > 2 else 1 for each in tokens])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    stored = gguf.GGMLQuantizationType[kind]
    for name, parameter in model.state_dict().items():
        values = parameter.numpy()
        narrow = stored if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        stem, _, end = name.rpartition(".")
        blocks = gguf.quants.quantize(permuted(model.config, name, values), narrow)
        writer.add_tensor(f"{names.get_name(stem)}.{end}", blocks, raw_dtype=narrow)
        parameter.copy_(
            torch.from_numpy(np.array(gguf.quants.dequantize(gguf.quants.quantize(values, narrow), narrow)))
        )
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return model


def permuted(config: Any, name: str, values: Any) -> Any:
    """Put the values of each rotary pair side by side, as llama.cpp has them."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = next((each for each in heads if each in name), None)
    if part is None:
        return values
    shaped = values.reshape(heads[part], 2, -1, values.shape[-1])
    return np.ascontiguousarray(shaped.swapaxes(1, 2).reshape(values.shape))


@pytest.mark.parametrize(("kind", "layer"), [("F32", None), ("Q8_0", Int8GroupsLinear), ("Q4_0", Int4WeightLinear)])
def test_ids_are_those_of_the_values_in_the_file(tmp_path: Path, kind: str, layer: type | None) -> None:
    path = tmp_path / "tiny.gguf"
    reference = write(path, kind)
    folder = folder_of(str(path))
    model = load_model(folder)
    with pytest.raises(ConfigError, match="GGUF files are computed on a CPU; leave out --option gpu"):
        load_model(folder, device="cuda:0")
    with pytest.raises(ConfigError, match=r"tp_size: .*tiny\.gguf is a GGUF file, which one rank computes"):
        Answers.from_checkpoint(folder, tp_size=2)
    assert sum(type(each) is layer for each in model.modules()) == (0 if layer is None else 2 * 7 + 1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.inference_mode():
        expected, found = reference(**inputs).logits[0], model(**inputs).logits[0]
    assert (found - expected).norm() / expected.norm() < (1e-5 if layer is None else 0.01)
    with running(create_writer(folder)) as scheduler:
        [(_, result)] = replies(scheduler, [say("Hello", answer={"max_new_tokens": 8})])
    assert len(result.token_ids) == 8
    if layer is None:
        ids = reference.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert result.token_ids == ids.tolist()
    assert interface(str(path)).inputs == ["text"]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_narrow_weights_are_computed_by_kernels(tmp_path: Path, kind: str, kernels: dict[str, Any]) -> None:
    path = tmp_path / "tiny.gguf"
    reference = write(path, kind)
    install(kernels)
    engine = fitted(load_model(folder_of(str(path))))
    assert engine.kernels is not None
    ids = torch.arange(40, 60)
    engine.decoder.attend_by("sdpa")
    with torch.inference_mode():
        expected, found = (
            each(input_ids=ids[None]).logits for each in (reference, engine.model)
        )  # with joined weights
    assert (found - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("kind", ["mamba", "unheard"])  # transformers knows one of them
def test_a_file_of_another_model_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, kind)
    writer.add_uint32(f"{kind}.block_count", 1)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    with pytest.raises(ConfigError, match=rf"other\.gguf: models of the type '{kind}' are not run from GGUF files"):
        folder_of(str(path))


def test_what_is_no_gguf_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no")
    with pytest.raises(ConfigError, match=r"text\.gguf: cannot be read"):
        folder_of(str(tmp_path / "text.gguf"))
    with pytest.raises(ConfigError, match=r"missing\.gguf cannot be read"):
        folder_of(str(tmp_path / "missing.gguf"))


def test_a_file_alone_names_its_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(path, "Q8_0")
    config = source_class()(str(path)).resolve().config
    assert (config.name, config.model_path) == ("tiny", str(path))
    assert [each.name for each in config.stages] == ["prepare", "answer"]
