"""The demo's dimensions, its config, and the files of the released layout that are not weights."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from transformers import Qwen3OmniMoeConfig

from demo_training.speech.speech import CODEBOOK, GROUPS
from omni_demo.speech.phrases import PICTURE_PROMPTS, REPLIES, SOUND_PROMPTS, TOPICS
from omni_demo.speech.pipeline import CHECKPOINT
from omni_testing.tiny.qwen3 import write_processor_files
from omni_testing.tiny.qwen3_config import Shape, complete_saved_config, model_config
from omni_testing.tiny.qwen3_tokenizer import write_tokenizer
from omni_torch.api import FILE as TEMPLATE

SHAPE = Shape(
    merges=650, hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, mrope_section=(6, 5, 5), experts=4,
    experts_per_token=2, moe_intermediate=128, intermediate=256, accept_layer=2, deepstack=(0,), vision_hidden=64,
    vision_depth=2, audio_hidden=96, audio_layers=2, talker_hidden=128, talker_layers=3, talker_heads=4, talker_kv_heads=2,
    talker_experts=4, predictor_layers=1, code_groups=GROUPS, codebook=CODEBOOK, wav_hidden=160, wav_layers=2, wav_window=8,
    decoder_dim=192, scale=2,
)  # fmt: skip
"""About five million weights."""


def write_files(folder: Path) -> dict[str, int]:
    """Write tokenizer and processor files. Returns the ids that the config needs.

    The chat template is the shipped checkpoint's, which has no place for tools: the demo calls none, and says so where they are given.
    """
    lines = [*REPLIES, *PICTURE_PROMPTS, *SOUND_PROMPTS, *(prompt for topic in TOPICS for prompt in topic.prompts)]
    ids = write_tokenizer(folder, SHAPE.merges, [*lines, *map(str.lower, lines)])
    shutil.copy(CHECKPOINT / TEMPLATE, folder / TEMPLATE)
    write_processor_files(folder)
    return ids


@cache
def config() -> Qwen3OmniMoeConfig:
    """Return the checkpoint's config."""
    with tempfile.TemporaryDirectory() as folder:
        return Qwen3OmniMoeConfig(**model_config(SHAPE, write_files(Path(folder))))


def complete_config(folder: Path) -> None:
    """Add to a saved ``config.json`` the fields that transformers drops."""
    complete_saved_config(folder, SHAPE)
