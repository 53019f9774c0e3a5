"""Finds the settings of a checkpoint's processors: in a file that holds those of all, or in one for each."""

from __future__ import annotations

from pathlib import Path

from omni_qwen3.config import MODEL
from omni_torch.api import Section, read_json

NESTED = "processor_config.json"
"""The file in which transformers 5 saves the settings of all processors; where it holds them, it takes precedence."""

IMAGE_FILE, VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
"""The older files. That of images holds the settings for sound as well."""


def processor_section(folder: Path, name: str, file: str) -> Section | None:
    """Return the settings of a processor: the section ``name`` of the nested file, or else the file of its own, if there is one."""
    if (folder / NESTED).exists():
        nested = Section(read_json(folder / NESTED), NESTED, MODEL)
        if name in nested:
            return nested.section(name)
    if (folder / file).exists():
        return Section(read_json(folder / file), file, MODEL)
    return None
