"""``omni qwen25 ...``: commands about Qwen2.5-Omni checkpoints."""

from __future__ import annotations

import click

from omni_torch.checkpoints.tiny_checkpoint import tiny_checkpoint


@click.group()
def qwen25() -> None:
    """Qwen2.5-Omni checkpoints."""


_WRITE = "omni_testing.tiny.qwen25:write_tiny_checkpoint"
qwen25.add_command(tiny_checkpoint(_WRITE, ["a", "b", "c"], "Dimensions."))
