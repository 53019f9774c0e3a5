"""The voices of a checkpoint: a vector for every number of phonemes, alone or blended."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.api import ConfigError, InvalidRequestError, did_you_mean, shown
from omni_kokoro.checkpoint import LARGEST, unpacked, voice_files
from omni_kokoro.interface import OPENAI
from omni_kokoro.sentence import Samples
from omni_torch.api import load_checked

_PART = re.compile(r"([^()]+)(?:\(\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*\))?")
_MOST_PARTS = 16


class Voices:
    """Reads every voice of a folder.

    Args:
        folder: the checkpoint's.
        place: of the voices, a folder or a file; ``None``: the checkpoint's own.
        width: of a vector.

    Raises:
        ConfigError: there are none, or one cannot be read; the message names its file.
    """

    def __init__(self, folder: str | Path, place: str | None = None, width: int = 256) -> None:
        self.tables = {name: _table(name, path, width) for name, path in voice_files(folder, place).items()}
        if not self.tables:
            where = place or f"{folder}/voices"
            raise ConfigError(
                f"{where}: holds no voices (NAME.pt, or a .npz of several); download them with the checkpoint"
            )

    def named(self, wanted: str | None) -> list[tuple[str, float]]:
        """Return the voices of ``af_heart``, ``af_heart(2)+af_bella`` or one of OpenAI's names, with weights that sum to 1.

        ``None`` or ``default``: the first there is of the usual ones.

        Raises:
            InvalidRequestError: there is no such voice; the message names the nearest.
        """
        if wanted is None or wanted.strip().casefold() in ("", "default"):
            return [(self._usual(), 1.0)]
        parts = re.split(r"[+,]", wanted)
        if len(parts) > _MOST_PARTS:
            raise InvalidRequestError(f"metadata.speaker: at most {_MOST_PARTS} voices, is {len(parts)}")
        found = [self._part(each) for each in parts]
        total = sum(weight for _, weight in found)
        if not 0 < total < float("inf"):
            raise InvalidRequestError(f"metadata.speaker: the weights of {shown(wanted)} must sum to more than 0")
        return [(name, weight / total) for name, weight in found]

    def style(self, parts: list[tuple[str, float]], phonemes: int) -> Samples:
        """Return the vector of a voice, or of a blend, for a number of phonemes, at least 1."""
        found = np.zeros(next(iter(self.tables.values())).shape[1], np.float32)
        for name, weight in parts:
            table = self.tables[name]
            row = table[min(phonemes, len(table)) - 1]
            found = row if len(parts) == 1 else found + np.float32(weight) * row
        return found

    def _part(self, text: str) -> tuple[str, float]:
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise InvalidRequestError(
                f"metadata.speaker: {shown(text)} is no voice; a blend is written af_heart(2)+af_bella(1)"
            )
        return self._name(match[1].strip()), float(match[2] or 1)

    def _name(self, wanted: str) -> str:
        known = {name.casefold(): name for name in self.tables}
        if (found := known.get(wanted.casefold())) is not None:
            return found
        for each in OPENAI.get(wanted.casefold(), ()):
            if each in self.tables:
                return each
        if wanted.casefold() in OPENAI:
            return self._usual()
        raise InvalidRequestError(
            f"metadata.speaker: no voice is called {shown(wanted)}{did_you_mean(wanted, self.tables, listing='the voices')}"
        )

    def _usual(self) -> str:
        return "af_heart" if "af_heart" in self.tables else next(iter(self.tables))


def _table(name: str, path: Path, width: int) -> Samples:
    """Return the vectors of a voice, float32 ``[phonemes, width]``. Nothing in the file is executed."""
    return load_checked(f"the voice {name!r}, {path},", lambda: _read(name, path, width))


def _read(name: str, path: Path, width: int) -> Samples:
    found: Any
    unpacked(path)
    if path.suffix == ".pt":
        import torch

        found = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(found, torch.Tensor):
            raise ValueError("it is not one tensor")
        found = found.detach()
    elif zipfile.is_zipfile(path):
        with np.load(path, allow_pickle=False) as archive:
            found = archive[name]
    else:
        found = np.frombuffer(path.read_bytes(), "<f4").reshape(-1, width)
    shape = tuple(getattr(found, "shape", ()))
    if not shape or 0 in shape or shape[-1] != width or len(shape) > 3 or (len(shape) == 3 and shape[1] != 1):
        raise ValueError(f"it has the shape {list(shape)}, not [phonemes, 1, {width}]")
    if shape[0] > LARGEST // (4 * width):  # a tensor of few bytes may say that it repeats them
        raise ValueError(f"it has {shape[0]} vectors, more than a voice has")
    table = np.asarray(found, np.float32).reshape(-1, width)
    if not np.isfinite(table).all():
        raise ValueError("it holds values that are no numbers; download it again")
    return table
