"""Loads models and processors of transformers from a local folder: never code, never from a hub, never a pickle of objects."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from omni_core.api import ConfigError
from omni_torch.api import load_checked, origin_of
from omni_transformers.checkpoints import first_line, read
from omni_transformers.gguf_files import load_linked

_LOCAL = {"local_files_only": True, "trust_remote_code": False}

_NOT_OURS = (
    "penalty_alpha",
    "dola_layers",
    "force_words_ids",
    "constraints",
    "assistant_model",
    "prompt_lookup_num_tokens",
    *("cache_implementation", "cache_config", "prefill_chunk_size", "low_memory"),
    *("return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
)
"""Settings of a generation config for which transformers would load code from a hub or a second model, by which it would lay out its cache,
or return more than ids."""


CLASSES: dict[str, Any] = {}
"""Classes of models by name that transformers does not export without a package that is not needed here."""


@cache
def load_model(
    model_path: str,
    dtype: str = "auto",
    device: str = "cpu",
    attention: str | None = None,
    part: str | None = None,
    placed: bool = True,
) -> Any:
    """Return the model of a checkpoint, in evaluation mode; the same object for equal arguments in a process.

    Args:
        dtype: ``auto``: as it is stored; on a CPU float32 in place of float16.
        attention: the name of an attention function; by default transformers' choice among its own.
        part: the architecture of a checkpoint that is a part of a model, such as a vocoder.
        placed: false to leave it on the CPU, for a caller that puts parts of it on the device.

    Raises:
        ConfigError: the checkpoint cannot be loaded; the message says why.
    """
    source = read(model_path, part)
    kind = CLASSES.get(source.architecture.name) or getattr(transformers, source.architecture.name, None)
    if kind is None:
        raise ConfigError(
            f"{model_path}: transformers {transformers.__version__} has no {source.architecture.name}; pip install -U transformers"
        )
    wanted: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    given = {} if attention is None else {"attn_implementation": attention}
    if attention is None and "/" in str(source.config.get("attn_implementation", "")):
        given = {"attn_implementation": "sdpa"}  # it names a repository of kernels
    if (file := origin_of(source.folder)) is not None:
        if device != "cpu":
            raise ConfigError(
                f"{file}: GGUF files are computed on a CPU; leave out --option gpu, or use the checkpoint in safetensors"
            )
        floats = torch.float32 if wanted == "auto" else wanted
        return load_linked(kind, source.folder, file, floats).eval().requires_grad_(False)

    def load() -> Any:
        try:
            return kind.from_pretrained(
                model_path,
                dtype=wanted,
                output_loading_info=True,
                weights_only=True,
                ignore_mismatched_sizes=True,  # the report has them
                **_LOCAL,
                **given,
            )
        except ImportError as error:
            raise _needs(model_path, "its model", error) from error

    model, report = load_checked(model_path, load)
    if unlike := sorted(map(str, report["mismatched_keys"])):
        raise ConfigError(
            f"{model_path}: {len(unlike)} weights have other shapes than config.json says, such as {unlike[0]} "
            "(name, shape in the file, shape by the config); is it the config of another model?"
        )
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(
            f"{model_path}: its files lack the weights {', '.join(missing[:3])}{more}; download the checkpoint again"
        )
    if dtype == "auto" and device == "cpu" and model.dtype == torch.float16:
        model = model.float()
    if isinstance(model, transformers.GenerationMixin):
        if getattr(model, "generation_config", None) is None:
            model.generation_config = GenerationConfig.from_model_config(model.config)
        for name in _NOT_OURS:
            if getattr(model.generation_config, name, None) is not None:
                setattr(model.generation_config, name, None)
    return model.eval().requires_grad_(False).to(device if placed else "cpu")


@cache
def load_processor(model_path: str, kind: str = "AutoProcessor") -> Any:
    """Return the processor of a checkpoint: its own, or its tokenizer or feature extractor alone.

    Args:
        kind: the class of transformers that loads it, such as ``AutoTokenizer``.

    Raises:
        ConfigError: it has none, or it cannot be read; the message says what is missing.
    """
    if not any((Path(model_path) / name).exists() for name in _PROCESSORS):
        raise ConfigError(f"{model_path}: has none of {', '.join(_PROCESSORS)}; download the checkpoint again")
    try:
        return getattr(transformers, kind).from_pretrained(model_path, **_LOCAL)
    except ImportError as error:
        raise _needs(model_path, "its processor", error) from error
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(f"{model_path}: its processor is code of its own, which is never run here") from None
        raise ConfigError(f"{model_path}: its processor cannot be read: {first_line(error)}") from error


def _needs(model_path: str, what: str, error: ImportError) -> ConfigError:
    """Return the error for a package that is missing. The library's own message ends with how to install it."""
    return ConfigError(f"{model_path}: {what} needs a package that is not installed: {' '.join(str(error).split())}")


_PROCESSORS = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json")


def generation_config(model: Any) -> GenerationConfig:
    """Return a copy of a model's generation config."""
    return GenerationConfig.from_dict(model.generation_config.to_dict())
