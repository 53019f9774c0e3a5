"""Loads a network whose weights are joined, converted or quantised, and keeps the result on disk, so that later starts map it.

A file is found by a key of everything that its content follows from: the checkpoint's files and headers, the options, the shapes of
the result, and the code that makes it. Machines without a disk for it load as the first time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from omni_core.api import ConfigError
from omni_torch.checkpoints import weight_cache
from omni_torch.checkpoints.headers import LARGEST_HEADER, TensorInfo, main_dtype, read_header, shards
from omni_torch.checkpoints.weight_files import Damaged, map_tensors, read_metadata, write_tensors
from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear, few_rows_linear
from omni_torch.processes.freed_memory import return_freed_memory
from omni_torch.quantization.packed_linear import (
    Pack,
    keep,
    keep_bfloat16,
    pack_embeddings,
    pack_linears,
)

logger = logging.getLogger(__name__)

ModuleT = TypeVar("ModuleT", bound=nn.Module)

LEAST_BYTES = 32 << 20
"""Smaller networks are not kept: they load in less than a tenth of a second."""

PLAIN = "plain"
"""The key of a file's metadata that names the weights which the scheme of quantisation leaves as they are, because of their shapes or their
values: a JSON list of numbers of calls of ``quantize``, from 0, whose order is the network's.
"""

_CODE = (
    "checkpoints/weights",
    "checkpoints/folders",
    "operations/few_rows",
    "quantization/coded_weights",
    "quantization/packed_linear",
    "quantization/quantized_linear",
    "quantization/quantized_values",
    "quantization/scaled_linear",
    "quantization/quantization_config",
    "quantization/quantized_checkpoints",
    "quantization/scaled_checkpoints",
    "checkpoints/gguf_checkpoints",
    "checkpoints/prepared",
    "checkpoints/weight_files",
)
"""The modules of this distribution that a prepared weight follows from."""


def load_prepared(
    make: Callable[[], ModuleT],
    fill: Callable[[ModuleT, torch.dtype | None], ModuleT],
    checkpoint: str | Path,
    *,
    network: str,
    dtype: torch.dtype,
    options: Mapping[str, object],
    quantize: Pack = keep,
    device: str | torch.device = "cpu",
) -> ModuleT:
    """Return a network with its weights, quantised, on ``device``; mapped from the cache if that is possible.

    A network in float32 on a CPU keeps the matrices of linear layers and embeddings in bfloat16 that its checkpoint stores so, where a
    kernel of :func:`omni_torch.operations.few_rows.few_rows_linear` is installed (decision 0023);
    :func:`omni_torch.operations.few_rows.matrix_of` returns
    them. Layouts of a machine's own are not made here: :func:`omni_torch.quantization.packed_linear.pack_linears` follows.

    Args:
        make: builds the network on the meta device.
        fill: reads its weights in a dtype, or ``None``: each in the one that it is stored in; see
            :func:`omni_torch.checkpoints.weights.load_module`.
        checkpoint: the folder.
        network: a name, for people.
        dtype: of floating-point parameters.
        options: what the weights depend on beside these: the way of quantisation, the rank.
        quantize: makes the layers with narrow weights; see :func:`omni_torch.quantization.quantized_linear.quantize_for`. Weights are
            rounded where ``fill`` puts them: on the CPU (:func:`filled_on`), so that a GPU never holds the wide ones.

    Raises:
        ConfigError: as ``fill``; or the bound of the cache is no size.
    """
    stored = quantize is keep and keeps_bfloat16(checkpoint, dtype, device)
    if stored:
        quantize = keep_bfloat16

    def filled(quantize: Pack) -> ModuleT:
        made = fill(make(), None if stored else dtype)
        if stored:
            return kept_as_stored(made, dtype, quantize)
        pack_linears(made, quantize)
        return made

    def describe(quantize: Pack) -> ModuleT:
        made = converted(make(), torch.bfloat16 if stored else dtype)
        if stored:
            return kept_as_stored(made, dtype, quantize, trim=False)
        pack_linears(made, quantize, trim=False)
        return made

    described = describe(quantize)
    nbytes = sum(each.numel() * each.element_size() for each in described.state_dict().values())
    wide_on_gpu = torch.device(device).type != "cpu" and quantize is keep
    if wide_on_gpu or nbytes < LEAST_BYTES or not weight_cache.bound():
        return filled(quantize).to(device)
    options = {"dtype": str(dtype).removeprefix("torch."), **options}
    key = _key(Path(checkpoint), described, options, fill)
    path = weight_cache.path_of(key)

    def like(plain: Collection[int]) -> ModuleT:
        return describe(_without(plain, quantize)) if plain else described

    def mapped() -> ModuleT | None:
        return _mapped(path, key, like)

    if (found := mapped()) is None:
        plain: list[int] = []
        made = filled(_noting(plain, quantize))
        state = made.state_dict()
        if not stored and (
            stayed := sorted({name.rpartition(".")[0] for name in state.keys() ^ described.state_dict().keys()})
        ):
            names = ", ".join(stayed[:3]) + (", ..." if len(stayed) > 3 else "")
            logger.warning("%s: `quantization` does not fit the values of %s, which stay as they are", network, names)
        if _signature(state) != _signature(like(plain).state_dict()):
            logger.warning(
                "the prepared weights of %s are made anew at every start: with values, `fill` and `quantize` give other dtypes or shapes "
                "than `make` and `quantize` without", network,
            )  # fmt: skip
            return made.to(device)
        metadata = {"key": key, "network": network, "checkpoint": str(Path(checkpoint).resolve())}
        metadata |= {
            "options": json.dumps({name: str(value) for name, value in options.items()}),
            PLAIN: json.dumps(plain),
        }
        try:
            write_tensors(path, state, metadata, weight_cache.claim)
        except OSError as error:
            logger.warning("the prepared weights of %s are not kept for the next start: %s", network, error)
            return made.to(device)
        if (found := mapped()) is None:  # another process has removed it
            return made.to(device)
        del made, state
    return_freed_memory()
    return found.to(device)


def filled_on(quantization: str | None, device: str) -> str:
    """Return where the weights of a network are read that computes on ``device``: on the CPU, if they are rounded there first."""
    return device if quantization is None else "cpu"


def keeps_bfloat16(checkpoint: str | Path, dtype: torch.dtype, device: str | torch.device) -> bool:
    """Return whether a network that computes in ``dtype`` keeps the weights of its checkpoint that are stored in bfloat16: it computes in
    float32 on a CPU that has a kernel for it, and most of the weights that are there are stored so.
    """
    if dtype != torch.float32 or torch.device(device).type != "cpu" or not few_rows_linear.replaced("cpu", dtype):
        return False
    folder, found = Path(checkpoint), dict[str, TensorInfo]()
    with contextlib.suppress(ConfigError):  # who reads the weights says what is wrong with those that they need
        for name in shards(folder):
            if (folder / name).is_file():
                found |= read_header(folder / name)
    return main_dtype(found.values()) == "bfloat16"


def kept_as_stored(module: ModuleT, dtype: torch.dtype, keep: Pack = keep_bfloat16, *, trim: bool = True) -> ModuleT:
    """Convert a network, whose weights have the dtypes of its checkpoint, to the dtype that it computes in, without the matrices of linear
    layers and embeddings that ``keep`` chooses; :func:`keeps_bfloat16` says for which networks.

    ``trim``: as of :func:`omni_torch.quantization.packed_linear.pack_linears`.
    """
    pack_embeddings(module, keep)
    pack_linears(module, keep, trim=trim)
    return converted(module, dtype)


def _noting(plain: list[int], quantize: Pack) -> Pack:
    """Return ``quantize``, which notes the numbers of its calls that leave a weight as it is."""
    calls = count()

    def noting(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module | None:
        number, layer = next(calls), quantize(weight, bias)
        if layer is None:
            plain.append(number)
        return layer

    return quantize if quantize is keep else noting


def _without(plain: Collection[int], quantize: Pack) -> Pack:
    """Return ``quantize`` without what it does in the calls of these numbers: values are known in them that the meta device lacks."""
    calls = count()
    return (lambda weight, bias: None if next(calls) in plain else quantize(weight, bias)) if plain else quantize


def converted(module: ModuleT, dtype: torch.dtype) -> ModuleT:
    """Give a network the dtype that it computes in. Scales keep theirs, and so do weights that stay in bfloat16. Parameters that share
    their values still do.
    """
    made: dict[tuple[int, torch.Size], torch.Tensor] = {}
    for owner in module.modules():
        if isinstance(owner, BFloat16Linear | BFloat16Embedding):
            continue
        for name, buffer in owner.named_buffers(recurse=False):
            if buffer.is_floating_point() and name != "_scales":
                setattr(owner, name, buffer.to(dtype))
        for parameter in owner.parameters(recurse=False):
            if parameter.dtype == dtype:
                continue
            place = parameter.data_ptr(), parameter.shape
            if parameter.is_meta or place not in made:
                made[place] = parameter.data.to(dtype)
            parameter.data = made[place]
    return module


def _signature(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (each.dtype, each.shape) for name, each in tensors.items()}


def _mapped(path: Path, key: str, describe: Callable[[frozenset[int]], ModuleT]) -> ModuleT | None:
    """Return a network with a file's tensors; ``None`` if there is none, or not such a one.

    Args:
        describe: returns the network without values, from the file's :data:`PLAIN`.
    """
    try:
        metadata = read_metadata(path)[0]
        if metadata.get("key") != key:
            raise Damaged("it is that of another key")
        tensors = map_tensors(path)
        network = describe(_numbers(metadata.get(PLAIN, "[]")))
        if _signature(tensors) != _signature(network.state_dict()):
            raise Damaged("it has other tensors")
    except OSError:  # there is none; other reasons are those of the file that is written then
        return None
    except Damaged as error:
        logger.warning("%s is made anew: %s", path, error)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    weight_cache.touch(path)
    network.load_state_dict(tensors, assign=True)
    network.eval().requires_grad_(False)
    return network


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(map(int, json.loads(text)))
    except (ValueError, TypeError, OverflowError):
        raise Damaged(f"{PLAIN} is {text[:100]!r}") from None


def _key(
    checkpoint: Path,
    module: nn.Module,
    options: Mapping[str, object],
    fill: Callable[[ModuleT, torch.dtype | None], ModuleT],
) -> str:
    found = hashlib.sha256()
    files = [checkpoint / name for name in shards(checkpoint)]
    for path in (*files, *sorted(checkpoint.glob("*config.json"))):
        found.update(_identity(path))
    described = {name: [str(each.dtype), *each.shape] for name, each in module.state_dict().items()}
    found.update(json.dumps([{name: str(value) for name, value in options.items()}, described]).encode())
    own = Path(__file__).parents[1]
    code = [own / f"{name}.py" for name in _CODE]  # not the versions of distributions: a checkout changes without them
    for package in sorted(
        {each.__module__.partition(".")[0] for each in (fill, *map(type, module.modules()))} - {own.name, "torch"}
    ):
        code += _files_of(package)
    for file in code:
        if file.is_file():
            found.update(file.read_bytes())
    return found.hexdigest()[:32]


def file_identity(path: str | Path) -> str:
    """Return what tells a file from another one, for ``options``: its size, its place on the disk and when it was written.

    Raises:
        ConfigError: it is missing.
    """
    path = Path(path).expanduser()
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return f"{path} {_marks(status)}"


def _marks(status: os.stat_result) -> str:
    """Return what changes when a file is replaced or written, and not when its disk is mounted anew or its permissions change."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _identity(path: Path) -> bytes:
    """Return what tells a file from another one, without reading it whole: for weights where and when it was written, and its header."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".json":
                return file.read()
            length = int.from_bytes(head := file.read(8), "little")
            head += file.read(min(length, LARGEST_HEADER))
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"the shard {path} cannot be read: {error.strerror}") from None
    return _marks(status).encode() + head


def _files_of(package: str) -> list[Path]:
    """Return the code of a distribution, so that another version of it does not read what this one has written."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return [] if file is None else sorted(Path(file).parent.rglob("*.py"))
