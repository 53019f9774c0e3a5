"""The files of a checkpoint: weights and voices. Imports no torch."""

from __future__ import annotations

import zipfile
from pathlib import Path

from attrs import evolve

from omni_core.api import ConfigError, Interface, expanded
from omni_kokoro.config import read_config
from omni_kokoro.interface import INTERFACE
from omni_torch.api import checked_file, download, read_json

FILES = ("config.json", "*.pth", "*.safetensors", "voices/*.pt", "voices/*.npz", "*.npz")
"""The files of a repository that are downloaded. A file of ONNX is used where it lies in a folder of yours."""

WEIGHTS, ONNX = (".pth", ".safetensors"), ".onnx"

_VOICES = (".pt", ".npz", ".bin")

LARGEST = 64 << 20
"""Bytes of a file of voices."""


def refusal(folder: str) -> str | None:
    """Return why a checkpoint is not a Kokoro's; ``None``: it is one."""
    try:
        config = read_json(Path(folder) / "config.json")
    except ConfigError as error:
        return str(error)
    return None if {"istftnet", "plbert", "vocab"} <= config.keys() else f"{folder}/config.json: no Kokoro's"


def weights_file(folder: str | Path, wanted: str | None = None) -> str:
    """Return the name of the file of weights: the one that is asked for; else the only one for PyTorch, else the only ``.onnx``.

    Raises:
        ConfigError: there is none, or several, which the message names.
    """
    place = Path(folder)
    names = sorted(str(each.relative_to(place)) for each in (*place.glob("*"), *place.glob("onnx/*")) if each.is_file())
    if wanted is not None:
        if wanted not in names:
            raise ConfigError(f"--option weights={wanted}: {folder} has no such file")
        return wanted
    for kinds in (WEIGHTS, (ONNX,)):
        found = [each for each in names if each.endswith(kinds)]
        if len(found) > 1:
            raise ConfigError(f"{folder}: has {', '.join(found)}; choose one: --option weights=NAME")
        if found:
            return found[0]
    raise ConfigError(f"{folder}: has no weights: neither .pth nor .safetensors nor .onnx")


def voice_files(folder: str | Path, place: str | None = None) -> dict[str, Path]:
    """Return the files of voices, by name: ``NAME.pt`` or ``NAME.bin``, or those in a ``.npz``, which is also called ``voices*.bin``.

    Args:
        place: a folder or a file; ``None``: ``voices/`` in the checkpoint's folder, and the ``.npz`` files beside it.

    Raises:
        ConfigError: a file of several voices cannot be read.
    """
    home = Path(folder)
    if place is None:
        files = [*(home / "voices").glob("*"), *home.glob("*.npz"), *home.glob("voices*.bin")]
    else:
        given = expanded(place)
        files = [given] if given.is_file() else [*given.glob("*")]
    found: dict[str, Path] = {}
    for path in sorted(each for each in files if each.suffix in _VOICES):
        names = unpacked(path)
        if path.suffix == ".npz" and names is None:
            raise ConfigError(f"the voices {path} cannot be read: it is no .npz; download it again")
        if path.suffix == ".pt" or names is None:
            found[path.stem] = path
        else:
            found |= {each.removesuffix(".npy"): path for each in names if each.endswith(".npy")}
    return dict(sorted(found.items()))


def unpacked(path: Path) -> list[str] | None:
    """Return the names of what a file of voices holds; ``None``: it is no archive.

    Raises:
        ConfigError: it cannot be read, or is larger than :data:`LARGEST`, also when it is unpacked.
    """
    checked_file(path, LARGEST)
    try:
        if not zipfile.is_zipfile(path):
            return None
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the voices {path} cannot be read: {error}") from error
    if (size := sum(each.file_size for each in parts)) > LARGEST:
        raise ConfigError(f"the voices {path} have {size} bytes when unpacked, more than the {LARGEST} of such a file")
    return [each.filename for each in parts]


def interface(folder: str, voices: str | None = None, weights: str | None = None) -> Interface:
    """Return what a checkpoint offers. Files of ONNX need not tell the durations of phonemes, so that no word times are promised."""
    read_config(folder)
    names = [*voice_files(folder, voices)]
    try:
        tells_words = not weights_file(folder, weights).endswith(ONNX)
    except ConfigError:  # the stage reports it
        tells_words = True
    return evolve(INTERFACE, voices=names, voices_from=None if names else "files in voices/", word_times=tells_words)


def fetch(model_path: str) -> str:
    """Download a checkpoint, if it is a hub id; return its folder."""
    return download(model_path, files=FILES)
