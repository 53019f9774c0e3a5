"""Checkpoints by folder or by hub id: what planning needs of them, and the whole of them. Imports no torch.

Planning reads ``config.json`` and the headers of the safetensors files, a few MiB of a checkpoint of any size. The weights
are downloaded by :func:`download` only, which ``omni run`` and ``omni pull`` call. Everything goes through
``huggingface_hub``, so its environment variables hold: ``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_TOKEN``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from omni_core.api import ConfigError, expanded
from omni_torch.checkpoints.folders import read_json
from omni_torch.checkpoints.headers import (
    INDEX,
    SINGLE,
    TensorInfo,
    Tensors,
    parse_header,
    read_headers,
    shards,
    weight_map,
)
from omni_torch.quantization.quantization_config import find_schemes, unpacked

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "additional_chat_templates/*.jinja", "codec.pth", "spk_dict.pt")
"""The files that the models of this project read."""

_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_SHARD = re.compile(r"model-\d+-of-(\d+)\.safetensors")
_AT_ONCE = 8
_SECONDS = 30.0
_REACHED_WITHIN = 4.0


@frozen
class Listing:
    """The tensors of a checkpoint by name, and the sizes of its other files in bytes. Callers share one, and do not change it."""

    tensors: Mapping[str, TensorInfo]
    files: dict[str, int] = field(factory=dict)


def split_hub_id(model: str) -> tuple[str, str | None] | None:
    """Return repository and revision of ``owner/name`` or ``owner/name@revision``; ``None`` if it is neither."""
    match = _HUB_ID.fullmatch(model)
    return (match["repository"], match["revision"]) if match else None


def config_folder(model: str, config: str = "config.json") -> str:
    """Return the folder with a checkpoint's ``config.json``: ``model`` itself, or of a hub id the snapshot, with that file in it.

    Args:
        config: the file's name, of checkpoints in another layout.

    Raises:
        ConfigError: neither a folder with that file nor a repository that can be reached and has one.
    """
    folder = expanded(model)
    if folder.is_dir():
        if not (folder / config).is_file():
            raise ConfigError(f"{folder} is not a checkpoint: it has no {config}")
        return str(folder)
    found = split_hub_id(model)
    if folder.is_absolute() or found is None:
        raise ConfigError(f"--model {model!r} is neither an existing folder nor a hub id of the form 'owner/name'")
    return _snapshot(model, *found, config)


@cache
def _snapshot(model: str, repository: str, revision: str | None, config: str) -> str:
    """Return the folder of a repository's snapshot, with its file ``config``; the same commit for the life of this process."""
    with _errors(model):
        from huggingface_hub import errors, hf_hub_download

        problem = _unreachable()
        try:
            found = hf_hub_download(repository, config, revision=revision, local_files_only=problem is not None)
        except errors.LocalEntryNotFoundError:
            if problem is None:
                raise
            raise ConfigError(f"{model}: {problem}") from None
        return str(Path(found).parent)


def _unreachable() -> str | None:
    """Return why the hub does not answer; ``None`` if it does, or is not to be asked. ``huggingface_hub`` would try for half a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if logging.getLogger().handlers:  # the program's log has the hub's lines: its own handler would print each again
        logging.getLogger("huggingface_hub").handlers.clear()
    if constants.is_offline_mode():
        return None
    problems = [f"no answer in {_REACHED_WITHIN:.0f} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=_REACHED_WITHIN)
        except Exception as error:
            problems[0] = f"{type(error).__name__}: {_line(error)}"
        else:
            problems.clear()

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name has no timeout
    asking.start()
    asking.join(_REACHED_WITHIN)
    return _out_of_reach(problems[0]) if problems else None


def _out_of_reach(reason: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} cannot be reached ({reason}); set HF_ENDPOINT for a mirror"


def listing(model: str, needs: Sequence[str] = ()) -> Listing:
    """Return what a checkpoint holds. Of a hub id that is not on disk, only the headers are transferred, once per commit.

    Args:
        needs: files beside the safetensors files without which a download is not complete.

    Raises:
        ConfigError: it cannot be read, or reached, or holds no safetensors files.
    """
    folder = Path(config_folder(model))
    found = split_hub_id(model)
    if expanded(model).is_dir() or found is None:
        return _local(folder)
    with suppress(ConfigError):
        downloaded = _local(folder)
        if downloaded.files.keys() >= set(needs):
            return downloaded
    cached = _cache() / "headers" / found[0].replace("/", "--") / f"{folder.name}.json"
    if cached.is_file():
        raw = json.loads(cached.read_text(encoding="utf-8"))
        fetched = Listing({name: TensorInfo(*each) for name, each in raw["tensors"].items()}, raw["files"])
    else:
        fetched = _remote(model, found[0], folder.name)
        _write(
            cached, {"tensors": {n: [t.dtype, t.values] for n, t in fetched.tensors.items()}, "files": fetched.files}
        )
    return Listing(unpacked(fetched.tensors, find_schemes(folder)), fetched.files)


def download(model: str, files: Sequence[str] = FILES, config: str = "config.json") -> str:
    """Return the folder of a checkpoint, after downloading what is missing of it, with progress bars.

    Args:
        files: patterns of the files to download; ``*`` stands for a part of a name, never for a folder.
        config: as in :func:`config_folder`.

    Raises:
        ConfigError: the disk is too small, or the download failed. Complete files are kept: the next call continues with the others.
    """
    folder, found = Path(config_folder(model, config)), split_hub_id(model)
    if expanded(model).is_dir() or found is None:
        return str(folder)
    with _errors(model):
        from huggingface_hub import constants, snapshot_download

        if problem := _unreachable():
            with suppress(ConfigError):
                _local(folder)
                return str(folder)
            raise ConfigError(f"{model}: {problem}")
        if not constants.is_offline_mode():
            wanted = {
                name: size
                for name, size in _sizes(found[0], folder.name).items()
                if any(fnmatch(name, each) and name.count("/") == each.count("/") for each in files)
            }
            files = list(wanted)  # the client's patterns reach into folders
            missing = [size for name, size in wanted.items() if not (folder / name).exists()]
            if not missing:
                return str(folder)
            _check_disk(model, sum(missing), Path(constants.HF_HUB_CACHE))
        with _interruptible() as bar:
            return str(snapshot_download(found[0], revision=folder.name, allow_patterns=list(files), tqdm_class=bar))


@contextmanager
def _interruptible() -> Iterator[type[Any]]:
    """Yield a class of progress bars that ends the downloading threads after Ctrl-C; the client itself waits for whole files."""
    from huggingface_hub.utils import tqdm

    interrupted = threading.Event()

    class Bar(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        def update(self, n: float | None = 1) -> bool | None:
            if interrupted.is_set():
                raise KeyboardInterrupt
            shown: bool | None = super().update(n)
            return shown

    def interrupt(number: int, frame: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield Bar
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield Bar
    finally:
        signal.signal(signal.SIGINT, before)


def _local(folder: Path) -> Listing:
    files = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
    return Listing(_tensors(folder, tuple(_version(folder / name) for name in ("config.json", *shards(folder)))), files)


def _version(path: Path) -> tuple[str, int, int, int] | None:
    """Return what changes with a file; ``None``: it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns, found.st_ino


@lru_cache(maxsize=2)
def _tensors(folder: Path, versions: tuple[object, ...]) -> Tensors:
    """Return the tensors of a folder whose config and shards have these versions: a plan asks for every placement that it
    tries, and the headers of a released checkpoint take half a second.
    """
    return unpacked(read_headers(folder), find_schemes(folder))


def _remote(model: str, repository: str, commit: str) -> Listing:
    from concurrent.futures import ThreadPoolExecutor

    with _errors(model):
        if problem := _unreachable():
            raise ConfigError(f"{model}: {problem}")
        sizes = _sizes(repository, commit)
        names = _shards(repository, commit, list(sizes))
    tensors: dict[str, TensorInfo] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool, _errors(model):
        for name, raw in zip(names, pool.map(lambda each: _header(repository, commit, each), names), strict=True):
            tensors |= parse_header(raw, f"{name} of {model}")
    return Listing(tensors, sizes)


def _sizes(repository: str, commit: str) -> dict[str, int]:
    """Return the files of a repository and their sizes."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    tree = HfApi().list_repo_tree(repository, revision=commit, recursive=True)
    return {each.path: each.size for each in tree if isinstance(each, RepoFile)}


def _shards(repository: str, commit: str, names: list[str]) -> list[str]:
    """Return the safetensors files that make up the model. The index is larger than all else, so it is a last resort."""
    if SINGLE in names:
        return [SINGLE]
    found = [(name, match) for name in sorted(names) if (match := _SHARD.fullmatch(name))]
    if found and all(int(match[1]) == len(found) for _, match in found):
        return [name for name, _ in found]
    if INDEX not in names:
        raise ConfigError(f"{repository} holds no weights: neither {INDEX} nor {SINGLE}")
    from huggingface_hub import hf_hub_download

    path = Path(hf_hub_download(repository, INDEX, revision=commit))
    return sorted(set(weight_map(read_json(path), f"{INDEX} of {repository}").values()))


def _header(repository: str, commit: str, name: str) -> Any:
    """Return the header of a file of a repository, by two range requests."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(repository, name, revision=commit)

    def part(first: int, last: int) -> bytes:
        headers = {**build_hf_headers(), "Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        response = get_session().get(url, headers=headers, timeout=_SECONDS)
        hf_raise_for_status(response)
        if response.status_code != 206:
            raise ConfigError(
                f"{url}: the server ignores range requests; download the checkpoint with `omni pull` first"
            )
        content: bytes = response.content
        return content

    length = int.from_bytes(part(0, 7), "little")
    if length > 100_000_000:
        raise ConfigError(f"{name} of {repository} is no safetensors file: a header of {length} bytes")
    return json.loads(part(8, 7 + length))


def _check_disk(model: str, missing: int, cache: Path) -> None:
    place = next(each for each in (cache, *cache.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(place).free
    if missing > free:
        raise ConfigError(
            f"{model}: {missing / 2**30:.1f} GiB are to be downloaded, {cache} has {free / 2**30:.1f} GiB free; "
            "make room, or set HF_HOME to a folder on a larger disk"
        )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a cache file, complete or not at all. A cache that cannot be written is not needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(content), encoding="utf-8")
        fresh.replace(path)
    except OSError:
        return


@contextmanager
def _errors(model: str) -> Iterator[None]:
    """Convert the errors of ``huggingface_hub`` into one line that says what to do."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{model}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"access is granted by its owner: accept the terms on {constants.ENDPOINT}, then set HF_TOKEN (or: hf auth login)"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{constants.ENDPOINT} has no such repository, or a private one; check the name, or set HF_TOKEN (or: hf auth login)"
    if constants.is_offline_mode():
        return "not on this machine, and HF_HUB_OFFLINE is set; unset it, or copy the hub's cache from a machine that has it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        cause = error.__cause__ or error
        return _out_of_reach(f"{type(cause).__name__}: {_line(cause)}")
    if isinstance(error, errors.EntryNotFoundError):
        return "the repository has no config.json; it is no checkpoint that omni can run"
    return f"cannot be fetched from {constants.ENDPOINT}: {type(error).__name__}: {_line(error)}"


def _line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no message")
