"""Files of prepared weights: safetensors whose tensors begin at multiples of 64 bytes, written whole or not at all, and mapped.

:mod:`omni_torch.checkpoints.prepared` decides what goes into them, :mod:`omni_torch.checkpoints.weight_cache` where they lie.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from omni_torch.checkpoints.headers import LARGEST_HEADER

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector that a kernel loads."""

HUGE_PAGE = 2**21
"""Bytes. Linux keeps what one call writes in pages as large as fit, up to this size and aligned to it, and maps a page of this size as one:
https://docs.kernel.org/admin-guide/mm/transhuge.html."""

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

SHARED = "shared"
"""The key of the metadata that names tensors which are another one of the file: a JSON object of names."""


class Damaged(Exception):
    """A file is not what was written: it was cut off, or is of another kind. The message says what is wrong."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    claim: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Write a file under another name, flush it to the disk and rename it.

    Tensors with the same memory are written once.

    Args:
        claim: takes the file's size; the file gets it in the block, as :func:`omni_torch.checkpoints.weight_cache.claim` needs it.

    Raises:
        OSError: the disk is full, or cannot be written. Nothing is left.
    """
    header, plan, shared = _plan(tensors)
    header["__metadata__"] = {**metadata, SHARED: json.dumps(shared)}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(8 + len(encoded)) % ALIGNMENT)
    total = 8 + len(encoded) + sum(map(_nbytes, plan))
    with ExitStack() as stack:
        claiming = stack.enter_context(ExitStack())
        claiming.enter_context(claim(total))
        handle, name = tempfile.mkstemp(prefix="writing-", dir=path.parent)
        stack.callback(Path(name).unlink, missing_ok=True)
        with os.fdopen(handle, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, total)  # a full disk is an error at once
            claiming.close()
            begin = memoryview(len(encoded).to_bytes(8, "little") + encoded)
            _write(file, chain([begin], map(_bytes, plan)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        stack.pop_all()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write(file: BinaryIO, parts: Iterable[memoryview]) -> None:
    """Write one part after the other in calls that begin and end at multiples of :data:`HUGE_PAGE`."""
    rest = bytearray()
    for part in parts:
        missing = -len(rest) % HUGE_PAGE
        rest += part[:missing]
        if len(rest) == HUGE_PAGE:
            file.write(rest)
            rest.clear()
        if not rest:
            end = len(part) - (len(part) - missing) % HUGE_PAGE
            file.write(part[missing:end])
            rest += part[end:]
    file.write(rest)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _plan(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], list[torch.Tensor], dict[str, str]]:
    """Return the header, the tensors in the order of the file and those that are another one. What is no multiple of the alignment
    long comes last, since the format allows no gaps.
    """
    first: dict[tuple[Any, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or place not in first:
            first[place] = name
        else:
            shared[name] = first[place]
    order = sorted(
        (name for name in tensors if name not in shared), key=lambda name: _nbytes(tensors[name]) % ALIGNMENT > 0
    )
    header: dict[str, Any] = {}
    at = 0
    for name in order:
        tensor, end = tensors[name], at + _nbytes(tensors[name])
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    return header, [tensors[name] for name in order], shared


def read_metadata(path: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return a file's metadata, its tensors as the header has them, and where their bytes begin.

    Raises:
        OSError: it cannot be read. Damaged: it is cut off, too long or no file of this kind.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(LARGEST_HEADER, size):
                raise Damaged("it has no header")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        ends = [_check(each) for each in header.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"its header cannot be read ({error})") from None
    if size != 8 + length + max(ends, default=0):
        raise Damaged(f"it has {size} bytes, its header says {8 + length + max(ends, default=0)}")
    return metadata, header, 8 + length


def _check(entry: dict[str, Any]) -> int:
    """Return where a tensor ends."""
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end or end - begin != prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize:
        raise ValueError("offsets that do not fit a shape")
    return int(end)


def _read_huge_pages(address: int, size: int) -> None:
    """Ask Linux to read a mapping from the disk in huge pages, however little it reads ahead. A refusal is ignored: small pages hold the
    same weights, and are read more slowly.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)


def map_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, mapped: pages are read when they are used, and shared with other processes that map it.

    Writing to one changes this process's copy only. Raises as :func:`read_metadata`.
    """
    metadata, header, start = read_metadata(path)
    if not header:
        return {}
    total = start + max(each["data_offsets"][1] for each in header.values())
    try:
        storage = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=total)
    except RuntimeError as error:
        raise OSError(str(error)) from None
    _read_huge_pages(storage.data_ptr(), total)
    memory = torch.tensor([], dtype=torch.uint8).set_(cast(torch.UntypedStorage, storage), 0, (total,), (1,))
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + each for each in entry["data_offsets"])
        dtype = _DTYPES[entry["dtype"]]
        if end == begin or begin % dtype.itemsize:  # an empty tensor, or a small one after an odd number of bytes
            tensors[name] = memory[begin:end].clone().view(dtype).view(entry["shape"])
        else:
            tensors[name] = memory[begin:end].view(dtype).view(entry["shape"])
    return tensors | {name: tensors[other] for name, other in json.loads(metadata[SHARED]).items()}
