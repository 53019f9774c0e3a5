"""``omni qwen3 ...``: commands about Qwen3-Omni checkpoints."""

from __future__ import annotations

import click

from omni_torch.checkpoints.tiny_checkpoint import tiny_checkpoint


@click.group()
def qwen3() -> None:
    """Qwen3-Omni checkpoints."""


_WRITE = "omni_testing.tiny.qwen3:write_tiny_checkpoint"
qwen3.add_command(
    tiny_checkpoint(_WRITE, ["a", "b", "c", "mid", "large"], "Dimensions; mid is about 270 M, large 1.5 B.")
)
