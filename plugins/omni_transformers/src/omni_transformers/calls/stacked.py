"""Calls of a second network of equal lengths, such as a depth decoder that writes the codebooks of a frame, as rows of one batch."""

from __future__ import annotations

from typing import Any

import torch
from attrs import define
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from omni_transformers.calls.packed import cache_of
from omni_transformers.words.engine_model import Door


@define(eq=False)
class Row:
    """A call of one row.

    Attributes:
        given: its arguments by name.
        output: when it is ``done``.
    """

    stacked: Stacked
    given: dict[str, Any]
    done: bool = False
    output: Any = None
    error: BaseException | None = None

    @property
    def shape(self) -> tuple[Any, ...]:
        """Calls of one shape are computed together."""
        cache = cache_of(self.given)
        length = None if cache is None else cache.get_seq_length()
        parts = ((name, _shape(each)) for name, each in sorted(self.given.items()) if each is not cache)
        return (id(self.stacked), length, *parts)


class Stacked:
    """A network whose forward takes rows, and keeps their positions in a cache of transformers or in none.

    Args:
        module: it.
    """

    def __init__(self, module: Any) -> None:
        self.door = Door(module)
        self.steps = self.rows = 0

    def row(self, given: dict[str, Any]) -> Row | None:
        """Return a call as a row; ``None``: the model must compute it itself."""
        cache = cache_of(given)
        if cache is not None and (
            type(cache) is not DynamicCache or any(type(each) is not DynamicLayer for each in cache.layers)
        ):
            return None
        tensors = [each for each in given.values() if isinstance(each, torch.Tensor)]
        return Row(self, given) if tensors and all(len(each) == 1 for each in tensors if each.dim()) else None

    def compute(self, rows: list[Row]) -> None:
        """Compute rows of one shape."""
        with torch.inference_mode():
            if len(rows) == 1:
                rows[0].output = self.door.run(**rows[0].given)
            else:
                self._compute(rows)
        for row in rows:
            row.done = True
        self.steps += 1
        self.rows += len(rows)

    def _compute(self, rows: list[Row]) -> None:
        first = rows[0].given
        given = {
            name: torch.cat([row.given[name] for row in rows])
            if isinstance(each, torch.Tensor) and each.dim()
            else each
            for name, each in first.items()
        }
        caches: list[Any] = [cache_of(row.given) for row in rows]
        whole: Any = None
        if caches[0] is not None:
            name = next(name for name, each in first.items() if each is caches[0])
            whole = given[name] = DynamicCache()
            for number, layer in enumerate(caches[0].layers):
                if layer.is_initialized:
                    parts = [cache.layers[number] for cache in caches]
                    whole.update(
                        *(torch.cat(each) for each in zip(*((p.keys, p.values) for p in parts), strict=True)), number
                    )
        output = self.door.run(**given)
        for place, row in enumerate(rows):
            cut = slice(place, place + 1)
            made = {name: each[cut] if isinstance(each, torch.Tensor) else each for name, each in output.items()}
            if whole is not None:
                own = caches[place]
                for number, layer in enumerate(whole.layers):
                    if number >= len(own.layers) or not own.layers[number].is_initialized:
                        own.update(layer.keys[cut], layer.values[cut], number)
                    else:
                        own.layers[number].keys, own.layers[number].values = layer.keys[cut], layer.values[cut]
                made |= {name: own for name, each in output.items() if each is whole}
            row.output = type(output)(**made)


def _shape(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else repr(value)
