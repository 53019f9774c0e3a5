"""The voices of a checkpoint, as files. Light: imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path

from omni_core.api import ConfigError
from omni_transformers.checkpoints import Source

_SUFFIXES = (".npy", ".safetensors")


def voice_files(source: Source, folder: str | None = None) -> dict[str, Path]:
    """Return the files of voices by name: those in a folder, or in ``voices/`` of the checkpoint.

    Raises:
        ConfigError: the folder that was given holds none.
    """
    path = source.folder / "voices" if folder is None else Path(folder)
    found = {each.stem: each for each in sorted(path.glob("*")) if each.suffix in _SUFFIXES}
    if folder is not None and not found:
        raise ConfigError(f"--option voices={folder}: there is no file of a voice (NAME{' or NAME'.join(_SUFFIXES)})")
    return found


def bark_presets(source: Source) -> dict[str, dict[str, Path]]:
    """Return the voice presets of Bark whose files are in the folder: by name, the files of the three prompts."""
    listed = source.file("speaker_embeddings_path.json")
    found = {}
    for name, files in listed.items():
        if not isinstance(files, dict):
            continue  # the name of a repository
        paths = {prompt: source.folder / str(file) for prompt, file in files.items()}
        root = source.folder.absolute()
        inside = all(path.absolute().is_relative_to(root) and ".." not in path.parts for path in paths.values())
        if inside and all(path.is_file() for path in paths.values()):
            found[name] = paths
    return found
