"""``omni qwen-image ...``: commands about Qwen-Image checkpoints."""

from __future__ import annotations

import click

from omni_torch.checkpoints.tiny_checkpoint import tiny_checkpoint


@click.group()
def qwen_image() -> None:
    """Qwen-Image checkpoints."""


_WRITE = "omni_testing.tiny.qwen_image:write_tiny_checkpoint"
qwen_image.add_command(
    tiny_checkpoint(
        _WRITE, ["a", "b", "c", "mid", "edit"], "Dimensions; mid is about 40 M, edit is a checkpoint that edits images."
    )
)
