"""Finding a checkpoint (a local folder, a hub id that is downloaded, one made here) and reading its config.

Light: nothing here imports torch. :mod:`omni_torch.weights` reads the tensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError


def resolve_checkpoint(model: str, files: Sequence[str]) -> str:
    """The local folder of a checkpoint: ``model`` itself, or a hub id, downloaded (with a progress bar) if need be.

    Called in the parent, before any stage starts, so that a download never counts against a start-up time-out. Downloading
    needs ``huggingface_hub``, which whoever reads checkpoints depends on.

    Args:
        files: patterns of the files to download.

    Raises:
        ConfigError: neither a folder with a ``config.json`` nor a repository that can be reached.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} is no checkpoint: it has no config.json")
        return str(folder)
    if folder.is_absolute() or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise ConfigError(f"--model {model!r} is neither an existing folder nor a hub id of the form 'owner/name'")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return str(snapshot_download(model, allow_patterns=list(files)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ConfigError(f"{model!r} is no local folder and could not be downloaded: {error}") from error


def written_once(name: str, write: Callable[[Path], object]) -> str:
    """The folder ``name`` of the user's cache, with the checkpoint that ``write`` puts there if nobody has yet.

    A folder is there in full or not at all, whoever else asks for it at the same time.
    """
    import shutil  # here, because the modules that register plugins import this one and must take no time
    import tempfile

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni"
    target = cache / name
    if not (target / "config.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
        try:
            write(fresh)
            try:
                fresh.rename(target)
            except OSError:  # somebody else has made it meanwhile
                if not (target / "config.json").is_file():
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return str(target)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint.

    Raises:
        ConfigError: the file is missing or unreadable, or holds something else.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold an object, holds a {type(raw).__name__}")
    return raw


class Section:
    """An object of a checkpoint's config that knows its ``path``, so that what is missing can be named.

    Args:
        model: whose checkpoint it should be, for that message.
    """

    def __init__(self, values: dict[str, Any], path: str, model: str) -> None:
        self._values, self._path, self._model = values, path, model

    def __getitem__(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise ConfigError(f"{self._path}.{name}: missing; is this a {self._model} checkpoint?")
        return self._values[name]

    def get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def section(self, name: str) -> Section:
        value = self[name]
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path}.{name}: must be an object")
        return Section(value, f"{self._path}.{name}", self._model)
