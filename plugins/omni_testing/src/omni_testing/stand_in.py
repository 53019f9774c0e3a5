"""A stand-in for a released checkpoint: its config, its index and the headers of its shards, with sparse files for the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

SHARD_BYTES = 5 * 10**9
"""The size at which released checkpoints are cut into shards."""


def write_stand_in(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
    """Write ``config.json``, the index and the shards of a checkpoint in bfloat16. The weights are holes: they take no disk.

    Args:
        shapes: of the tensors, by their names on disk.
    """
    cut: list[dict[str, Sequence[int]]] = [{}]
    filled = 0
    for name, shape in shapes.items():
        nbytes = 2 * prod(shape)
        if filled + nbytes > SHARD_BYTES and cut[-1]:
            cut.append({})
            filled = 0
        cut[-1][name] = shape
        filled += nbytes
    weight_map, total = {}, 0
    for number, part in enumerate(cut, 1):
        file, offset, header = f"model-{number:05}-of-{len(cut):05}.safetensors", 0, dict[str, Any]()
        for name, shape in part.items():
            end = offset + 2 * prod(shape)
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
            weight_map[name], offset = file, end
        text = json.dumps(header, separators=(",", ":")).encode()
        with (folder / file).open("wb") as shard:
            shard.write(len(text).to_bytes(8, "little") + text)
            shard.truncate(8 + len(text) + offset)
        total += offset
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
