"""Writes a complete Qwen3-Omni checkpoint in the released on-disk layout, tiny, with random weights.

The weights are *well conditioned*: drawn at unit gain, so that replies differ from prompt to prompt and speech is not
silent. (transformers' own initialisation gives constant tokens and silence.) What it says means nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from attrs import frozen

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPEAKERS = {"chelsie": 0, "ethan": 1, "aiden": 2}
"""Speakers, as offsets from the first id after the codec markers."""


@frozen
class Shape:
    """The dimensions in which tiny checkpoints differ."""

    merges: int = 60
    hidden: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    mrope_section: tuple[int, int, int] = (4, 2, 2)
    experts: int = 8
    experts_per_token: int = 2
    moe_intermediate: int = 32
    intermediate: int = 64
    accept_layer: int = 3
    deepstack: tuple[int, ...] = (0, 1)
    vision_hidden: int = 32
    vision_depth: int = 3
    audio_hidden: int = 32
    audio_layers: int = 2
    talker_hidden: int = 48
    talker_layers: int = 3
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_experts: int = 4
    talker_experts_per_token: int = 2
    predictor_layers: int = 2
    code_groups: int = 4
    codebook: int = 64
    wav_hidden: int = 32
    wav_layers: int = 2
    wav_window: int = 12
    im_end_gain: float = 1.4
    decoder_dim: int = 48
    scale: int = 1


SHAPES = {
    "a": Shape(),
    "b": Shape(
        merges=100, hidden=48, layers=5, heads=6, kv_heads=1, head_dim=12, mrope_section=(2, 2, 2), experts=6,
        experts_per_token=3, accept_layer=4, deepstack=(0, 1, 2), vision_depth=4, talker_hidden=32, talker_kv_heads=1,
        code_groups=6, codebook=96, wav_window=8,
    ),
    "c": Shape(
        merges=20, hidden=32, layers=3, heads=4, kv_heads=4, head_dim=8, mrope_section=(2, 1, 1), experts=4,
        experts_per_token=1, accept_layer=2, deepstack=(1,), talker_hidden=32, talker_heads=2, talker_kv_heads=2,
        talker_experts=6, talker_experts_per_token=3, code_groups=8, codebook=48, wav_layers=3, im_end_gain=1.0,
    ),
    "mid": Shape(
        merges=200, hidden=512, layers=12, heads=8, kv_heads=4, head_dim=64, mrope_section=(12, 10, 10), experts=8,
        experts_per_token=2, moe_intermediate=384, intermediate=1536, accept_layer=6, deepstack=(0, 1), vision_hidden=256,
        vision_depth=6, audio_hidden=256, audio_layers=3, talker_hidden=512, talker_layers=6, talker_heads=8, talker_kv_heads=2,
        talker_experts=8, predictor_layers=5, code_groups=16, codebook=1024, wav_hidden=512, wav_layers=4, wav_window=72,
        decoder_dim=768, scale=4,
    ),
}  # fmt: skip
"""Three tiny shapes that differ in everything a loader or an attention could get wrong, and one of about 270 M parameters."""


def default_model() -> tuple[str, str]:
    """The checkpoint of ``omni run`` without ``--model``: made once, in the user's cache folder.

    Returns:
        Its path, and a notice that says what it is.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni"
    target = cache / "qwen3-omni-tiny-1"
    if not (target / "config.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
        try:
            write_tiny_checkpoint(fresh)
            try:
                fresh.rename(target)
            except OSError:  # somebody else has made it meanwhile
                if not (target / "config.json").is_file():
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    notice = (
        "No --model given: using a tiny checkpoint with RANDOM weights. "
        "Its words and its voice are noise; pass --model with a Qwen3-Omni checkpoint for answers."
    )
    return str(target), notice


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint: config, tokenizer with chat template, processor files, sharded safetensors under the released names.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights. The same seed and shape give the same bytes.
        shape: one of :data:`SHAPES`.
        dtype: of the weights on disk, ``float32`` or ``bfloat16``.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``config.json``.
    """
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration
    from transformers.utils import logging

    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; there are: {', '.join(SHAPES)}")
    folder = Path(directory)
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} already holds a checkpoint; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    dims = SHAPES[shape]
    ids = _write_tokenizer(folder, dims)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of rope fields that the released config carries too
    logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config = Qwen3OmniMoeConfig(**_config(dims, ids))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Qwen3OmniMoeForConditionalGeneration(config).eval()
            _redraw(model, ids, dims)
        model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="200MB" if shape == "mid" else "1MB")
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    _complete_config(folder, config, dims)
    _write_processor_files(folder)
    return folder


def _redraw(model: Any, ids: dict[str, int], dims: Shape) -> None:
    """Draw every weight anew at unit gain, and scale the end-of-turn rows so that replies end now and then."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                name.endswith(("norm.weight", "layernorm.weight", "layer_norm.weight", "gamma"))
                or "norm" in name.split(".")[-2]
            ):
                parameter.fill_(1.0) if name.endswith("weight") or name.endswith("gamma") else parameter.zero_()
            elif name.endswith(("alpha", "beta")):
                parameter.zero_()
            elif name.endswith(".scale"):
                parameter.fill_(0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "embedding" in name or "embed_tokens" in name or "pos_embed" in name:
                parameter.normal_(0.0, 1.0)
            else:
                fan_in = parameter[0].numel() if "experts" not in name else parameter.shape[-1]
                gain = 3.0 if name.endswith(("lm_head.weight", "codec_head.weight")) else 1.0
                if ".block." in name and ".conv2." in name:
                    gain = 0.25  # a vocoder's residual branches: at full gain they amplify rounding a thousandfold
                parameter.normal_(0.0, gain / fan_in**0.5)
        # Quiet enough that the final clamp to [-1, 1] hides nothing.
        model.code2wav.decoder[-1].conv.weight *= 0.12
        # Reply lengths: these factors were chosen so that, over the tests' prompts, some replies end by themselves.
        model.thinker.lm_head.weight[ids["<|im_end|>"]] *= dims.im_end_gain
        model.talker.codec_head.weight[_codec_ids(dims)["codec_eos_token_id"]] *= 1.3


def _codec_ids(dims: Shape) -> dict[str, int]:
    first = dims.codebook
    names = [
        "codec_pad_id",
        "codec_bos_id",
        "codec_eos_token_id",
        "codec_nothink_id",
        "codec_think_bos_id",
        "codec_think_eos_id",
    ]
    return {name: first + offset for offset, name in enumerate(names)}


def _config(dims: Shape, ids: dict[str, int]) -> dict[str, Any]:
    """The whole config, with the fields that the released one carries beyond what transformers declares."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(dims.mrope_section), "interleaved": True}
    first_speaker = dims.codebook + 6
    half = dims.head_dim // 2
    assert sum(dims.mrope_section) == half, "mrope sections must cover half a head"
    tokens = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "position_id_per_seconds": 13,
    }
    attention = {"head_dim": dims.head_dim, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768}
    return {
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "enable_audio_output": True,
        "thinker_config": {
            **tokens,
            "user_token_id": ids["user"],
            "text_config": {
                **attention,
                "vocab_size": ids["vocabulary"],
                "hidden_size": dims.hidden,
                "intermediate_size": dims.intermediate,
                "num_hidden_layers": dims.layers,
                "num_attention_heads": dims.heads,
                "num_key_value_heads": dims.kv_heads,
                "num_experts": dims.experts,
                "num_experts_per_tok": dims.experts_per_token,
                "moe_intermediate_size": dims.moe_intermediate,
                "norm_topk_prob": True,
                "rope_parameters": rope,
                "mlp_only_layers": [],
            },
            "audio_config": {
                "num_mel_bins": 128,
                "encoder_layers": dims.audio_layers,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 2 * dims.audio_hidden,
                "d_model": dims.audio_hidden,
                "downsample_hidden_size": 8 * dims.scale,
                "n_window": 50,
                "n_window_infer": 400,
                "output_dim": dims.hidden,
                "conv_chunksize": 500,
            },
            "vision_config": {
                "depth": dims.vision_depth,
                "hidden_size": dims.vision_hidden,
                "intermediate_size": 2 * dims.vision_hidden,
                "num_heads": 4,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "out_hidden_size": dims.hidden,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": list(dims.deepstack),
            },
        },
        "talker_config": {
            **tokens,
            **_codec_ids(dims),
            "num_code_groups": dims.code_groups,
            "thinker_hidden_size": dims.hidden,
            "accept_hidden_layer": dims.accept_layer,
            "spatial_merge_size": 2,
            "speaker_id": {name: first_speaker + offset for name, offset in SPEAKERS.items()},
            "text_config": {
                **attention,
                "vocab_size": dims.codebook + 1024,
                "hidden_size": dims.talker_hidden,
                "intermediate_size": 2 * dims.talker_hidden,
                "num_hidden_layers": dims.talker_layers,
                "num_attention_heads": dims.talker_heads,
                "num_key_value_heads": dims.talker_kv_heads,
                "num_experts": dims.talker_experts,
                "num_experts_per_tok": dims.talker_experts_per_token,
                "moe_intermediate_size": 24 * dims.scale**2,
                "shared_expert_intermediate_size": 32 * dims.scale**2,
                "norm_topk_prob": True,
                "rope_parameters": rope,
                "mlp_only_layers": [],
            },
            "code_predictor_config": {
                **attention,
                "vocab_size": dims.codebook,
                "hidden_size": dims.talker_hidden,
                "intermediate_size": 3 * dims.talker_hidden,
                "num_hidden_layers": dims.predictor_layers,
                "num_attention_heads": dims.talker_heads,
                "num_key_value_heads": dims.talker_kv_heads,
                "num_code_groups": dims.code_groups,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
        },
        "code2wav_config": {
            "codebook_size": dims.codebook,
            "hidden_size": dims.wav_hidden,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "sliding_window": dims.wav_window,
            "intermediate_size": 2 * dims.wav_hidden,
            "num_hidden_layers": dims.wav_layers,
            "num_quantizers": dims.code_groups,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "decoder_dim": dims.decoder_dim,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }


def _complete_config(folder: Path, config: Any, dims: Shape) -> None:
    """Write what transformers' classes drop: fields of the released config that they do not declare."""
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    saved["talker_config"]["spatial_merge_size"] = 2
    saved["talker_config"]["text_config"]["shared_expert_intermediate_size"] = 32 * dims.scale**2
    for section in (saved["thinker_config"]["text_config"], saved["talker_config"]["text_config"]):
        section["head_dim"] = dims.head_dim
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")


def _write_tokenizer(folder: Path, dims: Shape) -> dict[str, int]:
    """A byte-level BPE over a few lines, the special tokens appended in their released order. Returns the ids needed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    lines = ["system\n", "user\n", "assistant\n"] * 50
    lines += [
        "You are a friendly voice that answers in words and in speech.",
        "What is in the picture and what do you hear?",
    ]
    lines += ["Tell me a story about a red fox, a blue house and the sound of the sea."] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    roles = sum(len(role) - 1 for role in ("system", "user", "assistant"))
    trainer = trainers.BpeTrainer(vocab_size=256 + roles + dims.merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "audio_token": "<|audio_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS})
    fast.save_pretrained(folder)
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    for role in ("system", "user", "assistant", "\n"):
        (ids[role],) = fast.encode(role, add_special_tokens=False)
    ids["vocabulary"] = len(fast) + 3
    return ids


def _write_processor_files(folder: Path) -> None:
    """What the processors read: image and video patches of 16, log-mel features of 16 kHz audio."""
    pixels = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "rescale_factor": 1 / 255,
        "resample": 3,
    }
    image = {
        **pixels,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
        "do_resize": True,
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 300,
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
        "dither": 0.0,
    }
    video = {
        **pixels,
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
