"""Reads and validates the config files of checkpoints, and keeps folders made here.

Nothing here imports torch. :mod:`omni_torch.checkpoints.hub` finds and downloads checkpoints, :mod:`omni_torch.checkpoints.weights`
reads the tensors.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omni_core.api import ConfigError

LoadedT = TypeVar("LoadedT")

LARGEST_TEXT = 64 * 2**20
"""Bytes of a JSON file or template: published indices of weights have up to 25 MB, tokenizers up to 35."""


ORIGIN = "origin.json"
"""Names, in a folder of the cache, the file that the folder was made from."""


def cache_folder() -> Path:
    """Return the folder of the user's cache, which may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni"


def origin_of(folder: str | Path) -> Path | None:
    """Return the file that :func:`written_once` has made a folder of the cache from; ``None``: it was made from none."""
    path = Path(folder) / ORIGIN
    return Path(str(read_json(path).get("file"))) if path.parent.parent == cache_folder() and path.is_file() else None


def made_folders() -> list[Path]:
    """Return the folders of the cache that were made from a file, those made last first."""
    found = [path.parent for path in cache_folder().glob(f"*/{ORIGIN}") if not path.parent.name.startswith("making-")]
    return sorted(found, key=lambda folder: -folder.stat().st_mtime)


def written_once(
    name: str, write: Callable[[Path], object], config: str = "config.json", origin: Path | None = None
) -> str:
    """Return the folder ``name`` of the user's cache, after ``write`` has filled it if it did not exist.

    ``config`` is a file that a complete one holds; ``origin`` a file from which ``write`` makes it, by which ``omni cache`` lists it.

    The folder appears complete or not at all, also when several processes ask for it at the same time. One that lacks ``config`` is written
    again.

    Raises:
        ConfigError: the cache cannot be written. And what ``write`` raises.
    """
    import shutil  # here, because the modules that register plugins import this one and must take no time
    import tempfile

    if origin is not None:
        config = ORIGIN
    cache = cache_folder()
    target = cache / name
    if not (target / config).is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
        except OSError as error:
            raise ConfigError(
                f"{cache} cannot be written: {error.strerror}; set XDG_CACHE_HOME to another folder"
            ) from None
        try:
            write(fresh)
            if origin is not None:
                (fresh / ORIGIN).write_text(json.dumps({"file": str(origin)}))
            try:
                fresh.rename(target)
            except OSError:  # another process was faster, or the folder is damaged
                if not (target / config).is_file():
                    shutil.rmtree(target)
                    fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return str(target)


def checked_file(path: Path, most: int | None = None, kind: str = "") -> Path:
    """Return the path of a checkpoint's file that can be read at once: a regular file, or a link to one, of at most ``most`` bytes.

    ``kind`` is said before its name, such as ``the shard``.

    Raises:
        ConfigError: it is missing, something else (a pipe or a device would be waited for), or larger.
    """
    what = f"{kind} {path}".lstrip()
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{what} is missing; download the checkpoint again") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{what} is no regular file; download the checkpoint again")
    if most is not None and found.st_size > most:
        raise ConfigError(f"{what} has {found.st_size} bytes, more than the {most} that such a file may have")
    return path


def read_text(path: Path) -> str:
    """Read a text file of a checkpoint, of at most :data:`LARGEST_TEXT` bytes.

    Raises:
        ConfigError: as :func:`checked_file`; or it is unreadable, or not UTF-8.
    """
    try:
        return checked_file(path, LARGEST_TEXT).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a checkpoint.

    Raises:
        ConfigError: as :func:`read_text`; or the file does not contain an object.
    """
    text = read_text(path)
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold an object, holds a {type(raw).__name__}")
    return raw


def load_checked(what: str, load: Callable[[], LoadedT]) -> LoadedT:
    """Call a loader of another library and convert its exceptions.

    Raises:
        ConfigError: it raised; the message begins with ``what``.
    """
    try:
        return load()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def read_tokenizer(folder: str | Path, ids: Mapping[str, int]) -> Any:
    """Read ``tokenizer.json`` of a checkpoint, with the ``tokenizers`` library, which model distributions depend on.

    Args:
        ids: the required id of each named token.

    Returns:
        A ``tokenizers.Tokenizer``.

    Raises:
        ConfigError: the file is missing, not a tokenizer, or that of another checkpoint.
    """
    from tokenizers import Tokenizer

    path = checked_file(Path(folder) / "tokenizer.json", LARGEST_TEXT)
    tokenizer = load_checked(str(path), lambda: Tokenizer.from_file(str(path)))
    for name, expected in ids.items():
        found = tokenizer.token_to_id(name)
        if found != expected:
            raise ConfigError(f"{path}: the id of {name} is {found}, config.json says {expected}")
    return tokenizer


class Section:
    """An object of a checkpoint's config, whose fields are read with their type and range checked.

    Every error is a :class:`ConfigError` with the file and the path of the field, its value and what is allowed. A field that is
    ``null`` counts as absent; it is required unless a default is given.

    Args:
        path: the file and the path within it, such as ``config.json.text_config``.
        model: the model that the checkpoint should be of, for the error of a missing field.
    """

    def __init__(self, values: dict[str, Any], path: str, model: str) -> None:
        self._values, self._path, self._model = values, path, model

    @property
    def values(self) -> dict[str, Any]:
        """All fields, without any check."""
        return self._values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise ConfigError(f"{self._path}.{name}: missing; is this a {self._model} checkpoint?")
        return self._values[name]

    def get(self, name: str, default: Any) -> Any:
        """Return a field without any check."""
        value = self._values.get(name)
        return default if value is None else value

    def fail(self, name: str, allowed: str) -> ConfigError:
        """Return the error of a field whose value is not ``allowed``."""
        return ConfigError(f"{self._path}.{name}: must be {allowed}, is {reprlib.repr(self._values.get(name))}")

    def section(self, name: str, *, optional: bool = False) -> Section:
        """Return an object within this one; an empty one if it is ``optional`` and absent."""
        value = self.get(name, {}) if optional else self[name]
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path}.{name}: must be an object")
        return Section(value, f"{self._path}.{name}", self._model)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from ``low`` to ``high``."""
        value = self[name] if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number from ``low`` to ``high``."""
        value = self[name] if default is None else self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.fail(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def integers(self, name: str, low: int, high: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a list of integers from ``low`` to ``high``."""
        value = self[name] if default is None else self.get(name, default)
        if not isinstance(value, list | tuple) or not all(type(each) is int and low <= each <= high for each in value):
            raise self.fail(name, f"a list of whole numbers from {low} to {high}")
        return tuple(value)

    def strings(self, name: str, default: Sequence[str]) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self.get(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise self.fail(name, "a list of strings")
        return tuple(value)

    def numbers(self, name: str, count: int, low: float, high: float, default: Sequence[float]) -> tuple[float, ...]:
        """Return a list of ``count`` numbers from ``low`` to ``high``."""
        value = self.get(name, default)
        numeric = isinstance(value, list | tuple) and all(
            type(each) in (int, float) and low <= each <= high for each in value
        )
        if not numeric or len(value) != count:
            raise self.fail(name, f"a list of {count} numbers from {low:g} to {high:g}")
        return tuple(map(float, value))

    def choice(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """Return one of a few values; others would change the model's results and are not implemented."""
        value = self.get(name, default)
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise self.fail(name, f"{' or '.join(map(repr, allowed))} (others are not implemented)")
        return value

    def multiple(self, name: str, other: str) -> None:
        """Check that a field is a multiple of another one, if both are present."""
        if name in self and other in self and self[name] % self[other]:
            raise self.fail(name, f"a multiple of {other}, which is {self[other]}")
