"""Processors that speak through a codec: made from their parts, since transformers would look for the codec in a hub."""

from __future__ import annotations

import inspect
from typing import Any

import transformers

from omni_transformers.loading import load_processor
from omni_transformers.speak.speaker import Loading


def processor_of(loading: Loading, kind: str, codec: Any) -> Any:
    """Return a processor with its codec.

    Args:
        kind: the processor's class.
        codec: the model of the codec.

    Raises:
        ConfigError: a part of it cannot be read.
    """
    made = getattr(transformers, kind)
    tokenizer = load_processor(loading.model_path, "AutoTokenizer")
    features = load_processor(loading.model_path, "AutoFeatureExtractor")
    settings = loading.source.file("processor_config.json")
    names = set(inspect.signature(made.__init__).parameters) - {
        "self",
        "feature_extractor",
        "tokenizer",
        "audio_tokenizer",
    }
    given = {name: settings[name] for name in names if name in settings}
    given.setdefault("chat_template", tokenizer.chat_template)
    processor = made(
        features, tokenizer, audio_tokenizer=None, **{name: given[name] for name in names if name in given}
    )
    processor.audio_tokenizer = codec
    return processor
