"""``omni fish-s2 ...``: commands about Fish Audio S2 checkpoints."""

from __future__ import annotations

import click

from omni_torch.checkpoints.tiny_checkpoint import tiny_checkpoint


@click.group()
def fish_s2() -> None:
    """Fish Audio S2 checkpoints."""


_WRITE = "omni_testing.tiny.fish_s2:write_tiny_checkpoint"
fish_s2.add_command(tiny_checkpoint(_WRITE, ["a", "b", "c", "mid"], "Dimensions; mid is about 90 M."))
