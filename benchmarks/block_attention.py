"""A layer of Qwen2.5-Omni's flow matching network: attention among blocks of frames beside transformers' masked pairs, as JSON.

    OMP_NUM_THREADS=1 python benchmarks/block_attention.py

At the dimensions of the released checkpoint (width 1024, 16 heads, blocks of 24 frames), with drawn weights, of a request with guidance.
"""

from __future__ import annotations

import json
import time

import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import DiTDecoderLayer

from omni_qwen25.block_attention import NAME, NEIGHBOURS

FRAMES = (500, 1500, 3000)
"""5, 15 and 30 seconds of speech."""

REPEATS = 3


def seconds(layer: DiTDecoderLayer, kind: str, x: torch.Tensor, moment: torch.Tensor) -> float:
    """Return the time of one evaluation."""
    config = layer.attn.config
    config._attn_implementation = kind
    turns = torch.zeros(len(x), x.shape[1], config.head_dim)
    distances = NEIGHBOURS
    begin = time.perf_counter()
    if kind == "sdpa":
        blocks = torch.arange(x.shape[1]) // config.block_size
        distances = (blocks - blocks[:, None]).expand(len(x), config.num_attention_heads, -1, -1)
    with torch.inference_mode():
        layer(x, moment, position_embeddings=(turns, turns), block_diff=distances)
    return time.perf_counter() - begin


def main() -> None:
    """Measure both in turn, and print the shortest times."""
    torch.manual_seed(0)
    layer = DiTDecoderLayer(Qwen2_5OmniDiTConfig(), look_ahead_block=1, look_backward_block=0).eval()
    found = {}
    for frames in FRAMES:
        x, moment = torch.randn(2, frames, 1024), torch.randn(2, 1024)
        times: dict[str, list[float]] = {"sdpa": [], NAME: []}
        for _ in range(REPEATS):
            for kind, each in times.items():
                each.append(seconds(layer, kind, x, moment))
        found[frames] = {kind: round(1000 * min(each), 1) for kind, each in times.items()}
    print(json.dumps({"milliseconds by frames": found}, indent=2))


if __name__ == "__main__":
    main()
