"""Compares the encoders and the vocoder of Qwen3-Omni with transformers' networks, in seconds of CPU time on one thread.

    python benchmarks/encoders.py [--quick] [--json FILE] [--dtype float32|bfloat16]

The networks are those of the ``mid`` tiny checkpoint (encoders 256 wide with 6 and 3 layers, a vocoder 512 wide), as their stages load
them: in the encoders, linear layers are packed on both sides. Both sides run in turn on the same inputs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, compare, json_option, publish, quick_option

from omni_qwen3.code2wav import Vocoder
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.quantization.packed_linear import pack_linears

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from networks import own, reference

GRIDS = {
    "an image of 256 x 256": [[1, 16, 16]],
    "an image of 1024 x 768": [[1, 48, 64]],
    "8 images of 256 x 256": [[1, 16, 16]] * 8,
    "a video of 32 frames": [[16, 16, 24]],
}
FRAMES = {"a clip of 2 s": [200], "a clip of 60 s": [6000], "8 clips of 3.7 s": [370] * 8}
Run = Callable[[], object]


def seconds(run: Run) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def vision(folder: Path, dtype: torch.dtype) -> dict[str, tuple[Run, Run]]:
    ours, theirs = own(folder, "vision", dtype), reference(folder, "vision", dtype)
    pack_linears(ours)
    pack_linears(theirs)

    def pair(grids: list[list[int]]) -> tuple[Run, Run]:
        patches = torch.randn(sum(t * h * w for t, h, w in grids), 1536).to(dtype)
        return lambda: ours(patches, grids), lambda: theirs(patches, grid_thw=torch.tensor(grids))

    return {f"vision, {name}": pair(grids) for name, grids in GRIDS.items()}


def audio(folder: Path, dtype: torch.dtype) -> dict[str, tuple[Run, Run]]:
    ours, theirs = own(folder, "audio", dtype), reference(folder, "audio", dtype)
    pack_linears(ours)
    pack_linears(theirs)

    def pair(frames: list[int]) -> tuple[Run, Run]:
        features = torch.randn(128, sum(frames)).to(dtype)
        return lambda: ours(features, frames), lambda: theirs(features, feature_lens=torch.tensor(frames))

    return {f"audio, {name}": pair(frames) for name, frames in FRAMES.items()}


def transformer(folder: Path, dtype: torch.dtype) -> dict[str, tuple[Run, Run]]:
    """The vocoder's transformer, with its cache: 24 frames behind 96, of one utterance and of eight."""
    from transformers import DynamicCache

    vocoder, theirs = Vocoder(str(folder), dtype=str(dtype).removeprefix("torch.")), reference(folder, "vocoder", dtype)
    codes = torch.randint(0, vocoder.codebook_size, (5, 24, vocoder.codebooks))

    def stream(count: int) -> None:
        utterances = [vocoder.begin() for _ in range(count)]
        for chunk in codes:
            vocoder._transform([(each, chunk) for each in utterances])

    def cached(count: int) -> None:
        caches = [DynamicCache(config=theirs.config) for _ in range(count)]
        for chunk in codes:
            for cache in caches:
                embedded = theirs.code_embedding(chunk.T.unsqueeze(0) + theirs.code_offset).mean(1)
                theirs.pre_transformer(inputs_embeds=embedded, past_key_values=cache, use_cache=True)

    return {
        f"vocoder's transformer, 5 chunks of {count} utterance{'s' * (count > 1)}": (
            lambda count=count: stream(count),
            lambda count=count: cached(count),
        )
        for count in (1, 8)
    }  # type: ignore[dict-item]


def convolutions(folder: Path, dtype: torch.dtype) -> dict[str, tuple[Run, Run]]:
    """The vocoder's convolutions, 24 frames."""
    ours, theirs = own(folder, "vocoder", dtype), reference(folder, "vocoder", dtype)
    hidden = torch.randn(1, 512, 24).to(dtype)

    def reference_run() -> Any:
        x = hidden
        for blocks in theirs.upsample:
            for block in blocks:
                x = block(x)
        for block in theirs.decoder:
            x = block(x)
        return x

    return {"vocoder's convolutions, 24 frames": (lambda: ours.synthesize(hidden), reference_run)}


@click.command()
@quick_option
@json_option
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
def main(quick: bool, json_path: Path | None, dtype: str) -> None:
    """Encoders and vocoder."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder, kind = write_tiny_checkpoint(Path(name) / "mid", shape="mid"), getattr(torch, dtype)
        for part in (vision, audio, transformer, convolutions):
            for title, (ours, theirs) in part(folder, kind).items():
                ours(), theirs()
                pairs = [(seconds(ours), seconds(theirs)) for _ in range(2 if quick else 7)]
                mine, other = zip(*pairs, strict=True)
                rows.append(compare(title, "s", mine, other, "transformers", higher_is_better=False))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
