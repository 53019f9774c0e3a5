"""Writes a complete Qwen3-TTS checkpoint in the released on-disk layout, tiny, with random weights.

The weights are *well conditioned*: drawn at unit gain, so that codes differ from text to text and speech is not silent.
They come from numpy's generator, which gives the same bits on every platform. The speech is meaningless.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_testing.tiny.qwen3_tts_config import EXTRACTOR, GENERATION, SHAPES, codec_config, model_config
from omni_testing.tiny.writing import LINES, new_folder

if TYPE_CHECKING:
    import torch

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint: configs, tokenizer, and the weights of the talker, the speaker encoder and the codec.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights. The same seed and shape give the same bytes.
        shape: one of :data:`SHAPES`.
        dtype: of the talker's and the speaker encoder's weights on disk, ``float32`` or ``bfloat16``; the codec's are float32.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``config.json``.
    """
    import numpy as np
    import torch
    from safetensors.torch import save_file

    folder, dims = new_folder(directory, shape, SHAPES), SHAPES[shape]
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    config, sound = model_config(dims, _write_tokenizer(folder, dims.merges)), codec_config(dims)
    for path, content in (
        (folder / "config.json", config),
        (folder / "generation_config.json", GENERATION),
        (codec / "config.json", sound),
        (codec / "preprocessor_config.json", EXTRACTOR),
    ):
        path.write_text(json.dumps(content, indent=2) + "\n")
    numbers = np.random.default_rng(seed)
    speaking = {
        name: each.to(getattr(torch, dtype)) for name, each in _speaking(config, dims.end_gain, numbers).items()
    }
    save_file(speaking, folder / "model.safetensors", {"format": "pt"})
    save_file(_sounding(sound, numbers), codec / "model.safetensors", {"format": "pt"})
    return folder


def _write_tokenizer(folder: Path, merges: int) -> dict[str, int]:
    """Train and write a byte-level BPE over a few lines, in the released files. Return the ids of markers, and ``vocabulary``."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    from omni_qwen3_tts.tokenizer import WORDS

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    roles, alphabet = ("system", "user", "assistant"), pre_tokenizers.ByteLevel.alphabet()
    size = 256 + sum(len(role) - 1 for role in roles) + merges
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*[f"{role}\n" for role in roles] * 50, *LINES], trainer)
    tokenizer.model.save(str(folder))
    first = tokenizer.get_vocab_size()
    ids = {token: first + number for number, token in enumerate(SPECIAL_TOKENS)}
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): {"content": token, **plain} for token, number in ids.items()},
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return {**ids, "vocabulary": first + len(SPECIAL_TOKENS) + 3}


def _normal(numbers: Any, shape: Any, gain: float) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy((gain * numbers.standard_normal(tuple(shape))).astype(np.float32))


def _drawn(numbers: Any, name: str, shape: Any) -> torch.Tensor:
    """Return the values of a tensor by the kind that its name tells."""
    if name.endswith("bias"):
        return _normal(numbers, shape, 0.1)
    if "norm" in name:
        return 1.0 + _normal(numbers, shape, 0.1)
    if "embed" in name:
        return _normal(numbers, shape, 1.0)
    if name.endswith(("gamma", "scale")):
        return 0.5 + _normal(numbers, shape, 0.05)
    if name.endswith(("alpha", "beta")):
        return _normal(numbers, shape, 0.1)
    if name.endswith("cluster_usage"):
        return 1.0 + abs(_normal(numbers, shape, 0.3))
    inputs = shape.numel() // shape[0]
    if len(shape) == 3 and ".block.1.conv" in name and shape[0] > shape[1]:  # transposed: [in, out, taps]
        inputs = 2 * shape[0]
    gain = 0.3 if "conv2" in name else 2.0 if "head" in name else 1.0
    if len(shape) == 3 and shape[0] == 1:  # the last layer of the decoder: quiet enough to stay within 1
        gain = 0.1
    return _normal(numbers, shape, gain / inputs**0.5)


def _split(name: str, tensor: torch.Tensor, sizes: list[int]) -> dict[str, torch.Tensor]:
    """Return the tensors on disk that make up one of ours. ``sizes``: rows of query, key and value."""
    from omni_qwen3_tts.checkpoint import JOINED

    base, _, kind = name.rpartition(".")
    stem, _, layer = base.rpartition(".")
    if layer not in JOINED:
        return {name: tensor}
    rows = sizes if layer == "qkv_proj" else [len(tensor) // 2] * 2
    parts = zip(JOINED[layer], tensor.split(rows), strict=True)
    return {f"{stem}.{part}.{kind}": piece.contiguous() for part, piece in parts}


def _speaking(raw: dict[str, Any], end_gain: float, numbers: Any) -> dict[str, torch.Tensor]:
    import torch

    from omni_qwen3_tts.config import parse_config
    from omni_qwen3_tts.speaker_encoder import SpeakerEncoder
    from omni_qwen3_tts.talker_network import Talker

    config = parse_config(raw)
    with torch.device("meta"):
        shapes = {f"talker.{name}": each.shape for name, each in Talker(config).state_dict().items()}
        if config.speaker_encoder is not None:
            encoder = SpeakerEncoder(config.speaker_encoder)
            shapes |= {f"speaker_encoder.{name}": each.shape for name, each in encoder.state_dict().items()}
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        tensor = _drawn(numbers, name, shape)
        if name == "talker.codec_head.weight":
            tensor[config.codec_eos] *= end_gain
        decoder = config.predictor if "code_predictor" in name else config.talker
        heads = [decoder.heads, decoder.kv_heads, decoder.kv_heads]
        tensors |= _split(name, tensor, [count * decoder.head_dim for count in heads])
    return tensors


def _sounding(raw: dict[str, Any], numbers: Any) -> dict[str, torch.Tensor]:
    import torch

    from omni_qwen3_tts.codec.config import parse_codec
    from omni_qwen3_tts.codec.decoder import CodecDecoder
    from omni_qwen3_tts.codec.encoder import CodecEncoder

    config = parse_codec(raw)
    assert config.encoder is not None
    with torch.device("meta"):
        decoder, encoder = CodecDecoder(config), CodecEncoder(config.encoder, config.codebooks, config.codebook_size)
    tensors: dict[str, torch.Tensor] = {}
    for prefix, network, sizes in (("decoder.", decoder, config), ("encoder.", encoder, config.encoder)):
        rows = [count * sizes.head_dim for count in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
        # The values are drawn in this order: what upsamples comes last.
        drawn = sorted(network.state_dict().items(), key=lambda each: each[0].startswith(("upsample.", "decoder.")))
        for name, each in drawn:
            tensors |= _split(prefix + name, _drawn(numbers, name, each.shape), rows)
    return tensors
