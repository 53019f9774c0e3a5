"""The structure of values to be sent: how many nodes they have, how deep they are, and the path of one that cannot be sent.

The limits protect processes from each other: a receiver's stack from depth, a sender's event loop from millions of nodes, memory from
texts without an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice, repeat
from typing import Any

from msgpack import ExtType

from omni_core.errors import CodecError
from omni_core.protocol.registry import names, values

MAX_DEPTH = 64
"""Containers inside each other. Decoding one extension type inside another takes 45 KB of the C stack; at about 180 of them
the usual stack of 8 MiB overflows and the process dies.
"""

MAX_NODES = 1_000_000
"""Containers and leaves of one value; each takes up to a microsecond to encode. An array or a tensor is one."""

LARGE_NODES = 20_000
"""Values with more nodes are large: encoding them may hold an event loop for more than 20 ms."""

MAX_BYTES = 2**30
"""Bytes (of a text: characters) of all texts and bytes in one value. An array or a tensor is not limited here: it is sent where it lies."""

LARGE_BYTES = 2**20
"""Values with more of them are large."""

_LEAVES = frozenset([type(None), bool, int, float, str, bytes, bytearray])
_SEQUENCES = frozenset([list, tuple, set, frozenset])
_SIZED = frozenset([str, bytes, bytearray, memoryview])


def is_large(value: Any) -> bool:
    """Return whether a value has more than :data:`LARGE_NODES` nodes or :data:`LARGE_BYTES`: it is better encoded in a thread than on an
    event loop.

    One that is not large keeps all limits, so that its encoder need not check them again.

    Raises:
        CodecError: it is nested too deeply, or has an extension type; the message names the path.
    """
    nodes, size = _count(value, LARGE_NODES)
    return nodes > LARGE_NODES or size > LARGE_BYTES


def check_limits(value: Any) -> None:
    """Return if a value keeps all limits.

    Raises:
        CodecError: it has more nodes than :data:`MAX_NODES`, more bytes than :data:`MAX_BYTES`, or is deeper than :data:`MAX_DEPTH`; the
            message names the path.
    """
    nodes, size = _count(value, MAX_NODES)
    if nodes > MAX_NODES:
        problem = CodecError(f"more than {MAX_NODES:,} values; send numbers as an array or a tensor, or less at a time")
        raise _located(value, problem)
    if size > MAX_BYTES:
        problem = CodecError(
            f"{size:,} bytes of text and bytes, at most {MAX_BYTES:,}; send an array, or less at a time"
        )
        raise _located(value, problem, lambda leaf: _refuse_large(leaf, problem), _LEAVES - _SIZED)


def _refuse_large(leaf: Any, problem: CodecError) -> None:
    """Refuse what has a good part of the bytes that were too many."""
    if type(leaf) in _SIZED and _size_of(leaf) > MAX_BYTES // 16:
        raise problem


def _count(value: Any, limit: int) -> tuple[int, int]:
    try:
        return count_nodes(value, limit)
    except CodecError as error:
        raise _located(value, error, _refuse_extension) from None


def _refuse_extension(leaf: Any) -> None:
    if type(leaf) is ExtType:
        raise CodecError("a msgpack.ExtType cannot be sent")


def _located(
    value: Any,
    problem: CodecError,
    check: Callable[[Any], object] = lambda leaf: None,
    leaves: frozenset[type] = _LEAVES,
) -> CodecError:
    path, _ = locate_failure(value, problem, check, LARGE_NODES, leaves)
    return CodecError(f"{path}: {problem}")


def _size_of(leaf: Any) -> int:
    return leaf.nbytes if type(leaf) is memoryview else len(leaf)


def _scan(children: Iterable[Any], below: list[Any]) -> int:
    """Add what must be visited to ``below``; return the bytes of the texts and bytes. Most values are small: this is one short loop."""
    size = 0
    for each in children:
        kind = type(each)
        if kind is str or kind is bytes:
            size += len(each)
        elif kind in _SIZED:
            size += _size_of(each)
        elif kind not in _LEAVES and (
            kind is not dict or each
        ):  # an empty dict, as parameters usually are, has nothing to visit
            below.append(each)
    return size


def count_nodes(value: Any, limit: int) -> tuple[int, int]:
    """Count containers and leaves level by level, and the bytes of texts and bytes, and stop where there are more than ``limit`` nodes.

    Raises:
        CodecError: containers are nested deeper than :data:`MAX_DEPTH`, or an extension type is among them: it could say that it is
            anything.
    """
    level, count, depth, size = [value], 1, 0, _size_of(value) if type(value) in _SIZED else 0
    while depth <= MAX_DEPTH:
        below: list[Any] = []
        for node in level:
            kind = type(node)
            if kind is dict:
                count += len(node)
                if count > limit:
                    return count, size
                size += _scan(node, below)
                children = node.values()
            elif kind in values:
                children = values[kind](node)
            elif kind in _SEQUENCES:
                children = node
            else:
                _refuse_extension(node)
                continue
            count += len(children)
            if count > limit:
                return count, size
            size += _scan(children, below)
        if not below:
            return count, size
        level = below
        depth += 1
    raise CodecError(f"nested too deeply: more than {MAX_DEPTH} containers in each other, or one that contains itself")


def rough_nbytes(value: Any) -> int:
    """Return about how many bytes a value holds: of texts, bytes, arrays and tensors in a few levels of containers."""
    total, level = 0, [value]
    for _ in range(_SIZED_LEVELS):
        below: list[Any] = []
        for node in level:
            kind = type(node)
            if kind is str or kind is bytes or kind is bytearray:
                total += len(node)
            elif kind in values:
                below += values[kind](node)
            elif kind is dict:
                below += islice(node.values(), _SIZED_ITEMS)
                total += 8 * len(node)
            elif kind in _SEQUENCES:
                below += islice(node, _SIZED_ITEMS)
                total += 8 * len(node)
            elif kind not in _LEAVES and type(nbytes := getattr(node, "nbytes", 0)) is int:
                total += nbytes
        if not below:
            break
        level = below
    return total


_SIZED_LEVELS, _SIZED_ITEMS = 5, 64


def locate_failure(
    value: Any,
    error: Exception,
    check: Callable[[Any], object],
    budget: int = MAX_NODES,
    leaves: frozenset[type] = _LEAVES,
) -> tuple[str, Exception]:
    """The path of the first node that cannot be sent, and the reason.

    Args:
        error: why the whole value cannot be sent; the answer for ``value`` itself where no part of it fails alone.
        check: called with every node that is neither a container nor a plain leaf; raises if it cannot be sent.
        budget: how many nodes to visit; the answer is then the container that has the next one.
        leaves: the types of what is a plain leaf.
    """
    level: list[Any] = [
        (value, None, "", None)
    ]  # a node, its parent's entry, the kind of its step and its key or index
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for entry in level:
            node = entry[0]
            kind = type(node)
            if kind is dict:
                children: Iterable[tuple[str, Any, Any]] = chain(
                    zip(repeat("key"), node, node, strict=False), zip(repeat("[]"), node, node.values(), strict=False)
                )
                budget -= 2 * len(node)
            elif kind in _SEQUENCES:
                children = zip(repeat("[]"), range(len(node)), node, strict=False)
                budget -= len(node)
            elif kind in names:
                children = [(".", name, getattr(node, name)) for name in names[kind][1]]
            else:
                try:
                    check(node)
                except Exception as node_error:
                    return _path(entry), node_error
                continue
            if budget < 0:
                return _path(entry), error
            below += [(child, entry, step, key) for step, key, child in children if type(child) not in leaves]
        if not below:
            return "payload", error
        level = below
    return _path(level[0]), error


def _path(entry: Any) -> str:
    steps = []
    while entry[1] is not None:
        _, parent, step, key = entry
        steps.append(f".{key}" if step == "." else f" key {_short(key)}" if step == "key" else f"[{_short(key)}]")
        entry = parent
    text = "payload" + "".join(reversed(steps))
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"


def _short(key: Any) -> str:
    """A dict key or an index, for a message: keys that are no plain data are named by their type."""
    text = repr(key) if type(key) in _LEAVES else f"({type(key).__qualname__})"
    return text if len(text) <= 80 else f"{text[:77]}..."
