"""The encoders of a model that sees or listens: what they made of a picture or a recording is kept, and not made again.

Models of transformers call ``get_image_features``, ``get_video_features`` and ``get_audio_features`` of their own, or their towers. While
they are :meth:`Encoders.keeping`, these calls are looked up by the digest of each piece of media; merging stays the model's code.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from attrs import define, field
from torch import nn
from transformers import PreTrainedModel

from omni_torch.api import EncoderCache

_FEATURES = re.compile(r"get_(image|video|audio)_features")
_MEDIA = re.compile("pixel_values|input_features|input_values")
_PROMPT = {"input_ids", "inputs_embeds", "position_ids"}
"""Arguments that differ with the text around a piece of media."""

_active: ContextVar[Encoders | None] = ContextVar("active", default=None)

Piece = tuple[torch.Tensor, ...]
"""The form of an output's fields (see :func:`_flatten`), and their tensors."""

Arguments = dict[str, Any]


class Encoders:
    """Keeps what the encoders of a model make.

    Args:
        max_bytes: as of :class:`EncoderCache`.
        together: encode the missing pieces of a call in one call, where that can be parted; by default on a device other than a CPU,
            which computes them as fast one by one.
    """

    def __init__(self, model: Any, max_bytes: int, together: bool | None = None) -> None:
        self.cache: EncoderCache[Piece] = EncoderCache(max_bytes)
        self._together = model.device.type != "cpu" if together is None else together
        if not max_bytes:
            return
        decoder = set(model.get_decoder().modules())
        for name, module in model.named_modules():
            if module in decoder or not isinstance(module, PreTrainedModel):
                continue
            for method in filter(_FEATURES.fullmatch, dir(type(module))):
                _set_door(
                    module,
                    method,
                    _Door(f"{name}.{method}", getattr(module, method), {"pooler_output", "deepstack_features"}),
                )
            if _MEDIA.search(module.main_input_name) and not any(each in decoder for each in module.modules()):
                _set_door(module, "forward", _Door(name, module.forward, {"last_hidden_state"}))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Look up the encoders' outputs in this thread."""
        token = _active.set(self if self.cache.max_bytes else None)
        try:
            yield
        finally:
            _active.reset(token)

    def fields(self, door: _Door, given: Arguments) -> dict[str, Any]:
        """Return the fields of a call's output that are read: kept, or computed piece by piece."""
        axis, pieces = _pieces(given)
        if len(pieces) > 1 and door.joins.get(axis, True) is not None:
            try:
                parts = self._parts(door, pieces, axis)
            except Exception:  # the whole call tells what is wrong, if it is not that it was parted
                door.joins.setdefault(axis, None)
            else:
                if axis not in door.joins:
                    whole = door.read_of(door.own(**given))
                    door.joins[axis] = joins = _joins(parts, whole)
                    alike = None if joins is None else _parted(whole, joins, len(pieces))
                    if alike is not None and all(
                        _equal([*a.values()], [*b.values()]) for a, b in zip(alike, parts, strict=True)
                    ):
                        door.parted.add(axis)
                if (joins := door.joins[axis]) is not None:
                    return {name: _join([each[name] for each in parts], how) for name, how in joins.items()}
        [whole] = self._parts(door, [given], axis)
        return whole

    def _parts(self, door: _Door, pieces: list[Arguments], axis: int) -> list[dict[str, Any]]:
        def missing(indices: list[int]) -> list[Piece]:
            if self._together and axis in door.parted and len(indices) > 1:
                whole = door.read_of(door.own(**_put_together([pieces[index] for index in indices], axis)))
                parts = _parted(whole, door.joins[axis] or {}, len(indices))
                if parts is not None:
                    return [*map(_packed, parts)]
            return [_packed(door.read_of(door.own(**pieces[index]))) for index in indices]

        names = sorted(door.read)
        digests = [_digest(f"{door.name} {names}", each) for each in pieces]
        return [dict(zip(names, _unpacked(each), strict=True)) for each in self.cache.encode(digests, missing)]


@define(eq=False)
class _Door:
    """A method of a model that encodes media.

    Attributes:
        read: the fields of its output that the model reads, as far as seen.
        joins: by the axis of pieces in arguments, how these fields of their outputs are joined; ``None``: a call cannot be parted so.
        parted: the axes for which the output of a call can be parted, too.
    """

    name: str
    own: Callable[..., Any]
    read: set[str]
    joins: dict[int, dict[str, int] | None] = field(factory=dict)
    parted: set[int] = field(factory=set)

    def read_of(self, output: Any) -> dict[str, Any]:
        return {name: getattr(output, name, None) for name in sorted(self.read)}


def _set_door(module: nn.Module, method: str, door: _Door) -> None:
    """Let an active :class:`Encoders` answer calls of a module's method."""
    own = door.own
    if hasattr(own, "door"):
        return
    signature = inspect.signature(own)

    @wraps(own)
    def call(*given: Any, **named: Any) -> Any:
        encoders = _active.get()
        if encoders is None:
            return own(*given, **named)
        bound = signature.bind(*given, **named).arguments
        bound |= bound.pop("kwargs", {})
        if any(bound.get(each) is not None for each in _PROMPT):
            return own(*given, **named)  # the towers inside have doors too
        return _Output(encoders, door, bound)

    call.door = door  # type: ignore[attr-defined]
    setattr(module, method, call)


class _Output:
    """An output of which a model reads some fields."""

    def __init__(self, encoders: Encoders, door: _Door, given: Arguments) -> None:
        self._encoders, self._door, self._given = encoders, door, given
        self._fields: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._fields:
            if name not in self._door.read:
                self._door.read.add(name)
                self._door.joins.clear()
                self._door.parted.clear()
            token = _active.set(None)
            try:
                self._fields = self._encoders.fields(self._door, self._given)
            finally:
                _active.reset(token)
        return self._fields[name]


def _flatten(value: Any, shape: list[int], tensors: list[torch.Tensor]) -> None:
    """Append the tensors of nested lists, and the form of the lists: how many each has; -1 for a tensor, -2 for ``None``."""
    if value is None or isinstance(value, torch.Tensor):
        shape.append(-2 if value is None else -1)
        tensors += [] if value is None else [value]
    else:
        shape.append(len(value))
        for each in value:
            _flatten(each, shape, tensors)


def _packed(fields: dict[str, Any]) -> Piece:
    shape: list[int] = []
    tensors: list[torch.Tensor] = []
    _flatten([*fields.values()], shape, tensors)
    return torch.tensor(shape), *tensors


def _unpacked(piece: Piece) -> Any:
    return _unflatten(iter(piece[0].tolist()), iter(piece[1:]))


def _unflatten(shape: Iterator[int], tensors: Iterator[torch.Tensor]) -> Any:
    count = next(shape)
    if count < 0:
        return None if count == -2 else next(tensors)
    return [_unflatten(shape, tensors) for _ in range(count)]


def _joins(parts: list[dict[str, Any]], whole: dict[str, Any]) -> dict[str, int] | None:
    """Return how the fields of outputs are joined to those of a whole call; ``None``: they do not make it."""
    ways = {
        name: [how for how in range(3) if _equal(_join([each[name] for each in parts], how), value)]
        for name, value in whole.items()
    }
    return {name: each[0] for name, each in ways.items()} if all(ways.values()) else None


def _join(values: Sequence[Any], how: int) -> Any:
    """Return the values of a field of several outputs as one: one behind the other (0), so in each level (1), or all the same (2)."""
    if how == 2 or values[0] is None:
        return values[0]
    try:
        if isinstance(values[0], torch.Tensor):
            return torch.cat([*values])
        return (
            [_join(level, 0) for level in zip(*values, strict=True)]
            if how
            else [each for value in values for each in value]
        )
    except (RuntimeError, ValueError):
        return None


def _put_together(pieces: list[Arguments], axis: int) -> Arguments:
    """Return the arguments of a call for some pieces of another one."""
    first = pieces[0]
    tensors = [name for name, each in first.items() if isinstance(each, torch.Tensor) and each.dim()]
    return first | {name: torch.cat([each[name] for each in pieces], axis) for name in tensors}


def _parted(whole: dict[str, Any], joins: dict[str, int], count: int) -> list[dict[str, Any]] | None:
    """Return the fields of an output for each piece, where these are its rows or the elements of its lists; ``None``: they are not."""
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in whole.items():
        levels = value if joins[name] == 1 else [value]
        if joins[name] == 2 or value is None:
            elements = [value] * count
        elif any(len(each) != count for each in levels):
            return None
        elif joins[name] == 1:
            elements = [[level[index : index + 1] for level in levels] for index in range(count)]
        else:
            elements = [value[index : index + 1] for index in range(count)]
        for part, each in zip(parts, elements, strict=True):
            part[name] = each
    return parts


def _equal(one: Any, other: Any) -> bool:
    """Return whether fields are equal, but for rounding."""
    if one is None or other is None:
        return one is other
    if isinstance(one, torch.Tensor) != isinstance(other, torch.Tensor):
        return False
    if not isinstance(one, torch.Tensor):
        return len(one) == len(other) and all(map(_equal, one, other))
    allowed = 1e-4 if one.dtype == torch.float32 else 0.02
    return one.shape == other.shape and float((one.float() - other.float()).norm()) <= allowed * float(
        other.float().norm()
    )


def _pieces(given: Arguments) -> tuple[int, list[Arguments]]:
    """Return arguments for each piece of media alone, and the axis along which tensors have them; a single one: they are not parted."""
    tensors = {name: each for name, each in given.items() if isinstance(each, torch.Tensor) and each.dim()}
    grid = next((each for name, each in tensors.items() if "grid" in name and each.dim() == 2), None)
    sizes = [] if grid is None else grid.prod(-1).tolist()
    first = next(iter(tensors.values())) if grid is None else grid
    axis = int(first.shape[0] == 1 and first.dim() > 4)
    count = first.shape[axis]
    if any(isinstance(each, list | tuple) and len(each) == count for each in given.values()):
        return axis, [given]
    parted: dict[str, Sequence[torch.Tensor]] = {}
    for name, each in tensors.items():
        if each.dim() > axis and each.shape[axis] == count:
            parted[name] = each.split(1, axis)
        elif each.shape[0] == sum(sizes):
            parted[name] = each.split(sizes)
        else:
            return axis, [given]
    return axis, [given | {name: each[index] for name, each in parted.items()} for index in range(count)]


def _digest(name: str, given: Arguments) -> bytes:
    digest = hashlib.blake2b(name.encode(), digest_size=16)
    for key, each in sorted(given.items()):
        if isinstance(each, torch.Tensor):
            digest.update(f"{key}{each.dtype}{list(each.shape)}".encode())
            digest.update(bytes_of(each))
        else:
            digest.update(f"{key}{each!r}".encode())
    return digest.digest()


def bytes_of(values: torch.Tensor) -> Any:
    """Return the memory of a tensor."""
    return values.reshape(-1).contiguous().view(torch.uint8).cpu().numpy()
