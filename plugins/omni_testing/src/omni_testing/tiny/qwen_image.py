"""Writes a complete Qwen-Image checkpoint in diffusers' layout, tiny, with random weights. Its images are noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from omni_testing.tiny.writing import new_folder

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
"""The special tokens, in the order of their ids, behind the ordinary ones."""


@frozen
class Shape:
    """Dimensions of a tiny checkpoint.

    Attributes:
        width, layers, heads: of the text encoder.
        blocks, image_heads, head_dim, axes: of the denoising network; axes are those of its rotary positions.
        latents: channels of a latent.
        base: channels of the autoencoder's first layer.
        edits: whether it edits images.
        shift: whether the noise levels depend on the resolution.
    """

    width: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    blocks: int = 2
    image_heads: int = 2
    head_dim: int = 16
    axes: tuple[int, int, int] = (4, 6, 6)
    latents: int = 4
    base: int = 8
    edits: bool = False
    shift: bool = True


SHAPES = {
    "a": Shape(),
    "b": Shape(
        width=48, layers=3, heads=6, kv_heads=3, blocks=3, image_heads=3, head_dim=24, axes=(8, 8, 8), latents=16
    ),
    "c": Shape(
        width=64, heads=8, kv_heads=8, blocks=1, image_heads=4, head_dim=32, axes=(8, 12, 12), base=16, shift=False
    ),
    "mid": Shape(
        width=256,
        layers=4,
        heads=8,
        kv_heads=4,
        blocks=6,
        image_heads=6,
        head_dim=64,
        axes=(16, 24, 24),
        latents=16,
        base=24,
    ),
    "edit": Shape(edits=True),
}


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint that diffusers loads too.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights.
        shape: one of :data:`SHAPES`.
        dtype: of the weights on disk, ``float32`` or ``bfloat16``.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``model_index.json``.
    """
    import torch
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLForConditionalGeneration

    folder, dims = new_folder(directory, shape, SHAPES, "model_index.json"), SHAPES[shape]
    ids = _write_tokenizer(folder, dims)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = {
            "text_encoder": Qwen2_5_VLForConditionalGeneration(_text_config(dims, ids)),
            "transformer": QwenImageTransformer2DModel(
                in_channels=4 * dims.latents,
                out_channels=dims.latents,
                num_layers=dims.blocks,
                attention_head_dim=dims.head_dim,
                num_attention_heads=dims.image_heads,
                joint_attention_dim=dims.width,
                axes_dims_rope=dims.axes,
            ),
            "vae": AutoencoderKLQwenImage(
                base_dim=dims.base,
                z_dim=dims.latents,
                num_res_blocks=1,
                latents_mean=[0.1 * each for each in range(dims.latents)],
                latents_std=[1.0 + 0.1 * each for each in range(dims.latents)],
            ),
        }
    for name, network in networks.items():
        for parameter in network.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))
        network.save_pretrained(folder / name)
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=dims.shift,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02 if dims.shift else None,
        time_shift_type="exponential",
    )
    scheduler.save_pretrained(folder / "scheduler")
    index: dict[str, Any] = {
        "_class_name": "QwenImageEditPipeline" if dims.edits else "QwenImagePipeline",
        "_diffusers_version": "0.37.0",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"],
    }
    if dims.edits:
        index["processor"] = ["transformers", "Qwen2VLProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    return folder


def _text_config(dims: Shape, ids: dict[str, int]) -> Any:
    from transformers import Qwen2_5_VLConfig

    head = dims.width // dims.heads
    half = head // 2
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": dims.width,
            "intermediate_size": 2 * dims.width,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "num_hidden_layers": dims.layers,
            "num_attention_heads": dims.heads,
            "num_key_value_heads": dims.kv_heads,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": dims.width,
            "fullatt_block_indexes": [1],
            "patch_size": 14,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def _write_tokenizer(folder: Path, dims: Shape) -> dict[str, int]:
    """Write a byte-level tokenizer, and the processor of an editing checkpoint. Returns all tokens with their ids."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={each: number for number, each in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        pad_token=SPECIAL[0],
        eos_token="<|im_end|>",
        additional_special_tokens=SPECIAL,
    )
    tokenizer.save_pretrained(folder / "tokenizer")
    if dims.edits:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        Qwen2VLImageProcessorPil(patch_size=14).save_pretrained(folder / "processor")
        tokenizer.save_pretrained(folder / "processor")
    found: dict[str, int] = tokenizer.get_vocab()
    return found
