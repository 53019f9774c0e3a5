"""Memory that a stage needs: weights from the sizes of its tensors, working memory, and the KV cache. Plain arithmetic, no torch.

The planner adds these up to choose devices and budgets; the engine subtracts them from its budget to size its cache. All sizes
are bytes, per device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from omni_core.api import gib
from omni_torch.checkpoints.headers import Tensors

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

ONE_BYTE = ("int8_weight_only", "float8_weight_only")
"""The values of ``quantization`` of a stage on a GPU; see :data:`omni_torch.quantization.scaled_linear.GPU_QUANTIZATIONS`."""

MAX_RUNNING = 32
"""Requests that an engine computes together, unless its stage says otherwise."""

MAX_BATCH_TOKENS = 2048
"""Positions that an engine computes in one step, unless its stage says otherwise."""

CHUNK_SIZE = 512
"""Those of one prompt, beside other requests."""

CHUNK_ALONE = 1024
"""Those of a prompt without any: nobody waits for the step, and weights are read half as often."""

CPU_CACHE = 512 * 2**20
"""The least KV cache on a CPU, if the memory is there."""

LEAST_POSITIONS = 6144
"""A plan gives a KV cache at least this many positions, or those of one request if it may have fewer: more than the 4096 that a
reply of speech may take by default."""

LIBRARIES = 128 * 2**20
"""Workspaces of libraries, and what an allocator cannot use."""


def weight_bytes(arguments: Mapping[str, Any], otherwise: int) -> int:
    """Return the bytes of a value of a stage's matrices on a GPU, by its factory arguments. ``otherwise``: those of its dtype."""
    return 1 if arguments.get("quantization") in ONE_BYTE else otherwise


def chunks(asked: int | None) -> tuple[int, int]:
    """Return the positions of a prompt's chunk beside other requests, and alone; ``asked``: what its stage says for both, if anything."""
    return (CHUNK_SIZE, CHUNK_ALONE) if asked is None else (asked, asked)


def whole(name: str, ranks: int) -> int:
    """Return 1: every rank has the whole tensor."""
    return 1


@frozen
class CacheShape:
    """The KV cache of an autoregressive stage, in values, not bytes.

    Attributes:
        layers, kv_heads, head_dim: of the decoder.
        kept_width: what a runner stores per position beside keys and values.
        hidden_size, vocab_size: of the decoder.
        max_context: the most positions of one request.
    """

    layers: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_context: int
    kept_width: int = 0

    def position_bytes(self, item_bytes: int, ranks: int = 1) -> int:
        """Return what one position takes: keys, values, kept values and the request's own rows."""
        heads = max(1, self.kv_heads // ranks)
        cached = 2 * self.layers * heads * self.head_dim + self.kept_width
        return (cached + request_values(self.hidden_size)) * item_bytes

    def step_bytes(self, item_bytes: int, tokens: int = MAX_BATCH_TOKENS, running: int = MAX_RUNNING) -> int:
        """See :func:`step_bytes`."""
        return step_bytes(self.hidden_size, self.vocab_size, item_bytes, tokens, running)


def request_values(hidden_size: int) -> int:
    """Return the values that a request holds per prompt position beside the cache: its embedding and a hidden state."""
    return 2 * hidden_size


def step_bytes(hidden_size: int, vocab_size: int, item_bytes: int, tokens: int, running: int) -> int:
    """Return the working memory of one step of a decoder.

    Per position 32 rows of the hidden size (a mixture of experts gathers 8 and returns 8, attention and residuals take the
    rest), per request four float32 rows of logits.
    """
    return tokens * hidden_size * item_bytes * 32 + running * vocab_size * 16 + LIBRARIES


def left_for_cache(budget: int, weights: int, step: int) -> int:
    """Return what a budget leaves for KV cache and requests."""
    return max(0, budget - weights - step)


def cpu_cache_bytes(one_request: int, available: int | None) -> int:
    """Return the size of a KV cache on a CPU: 512 MiB, or one request of the longest context, but at most a quarter of the free memory."""
    wanted = max(CPU_CACHE, one_request)
    return wanted if available is None else max(min(wanted, available // 4), min(CPU_CACHE, available // 2))


@frozen
class Network:
    """The part of a checkpoint that a stage loads, and what it computes with.

    Attributes:
        prefixes: of the names of its tensors.
        working: bytes beside weights and cache, by bytes per value, for stages without a cache.
        cache: of an autoregressive stage.
        ranks: the ``tp_size`` values that the model allows.
        parts: into how many parts a tensor is split over so many ranks.
    """

    prefixes: tuple[str, ...]
    working: Callable[[int], int] = lambda item_bytes: LIBRARIES
    cache: CacheShape | None = None
    ranks: tuple[int, ...] = (1,)
    parts: Callable[[str, int], int] = whole

    def weight_values(self, tensors: Tensors, ranks: int = 1, *, unpacked: bool = False) -> int:
        """Return the number of values of its weights on one rank; ``unpacked``: of words those that they hold."""
        return sum(
            (each.unpacked if unpacked else each.values) // self.parts(name, ranks)
            for name, each in tensors.items()
            if name.startswith(self.prefixes)
        )


def size(nbytes: int) -> str:
    """Format a size in GiB, or in MiB below a tenth of one."""
    return f"{nbytes / 2**20:.0f} MiB" if nbytes < 2**30 // 10 else gib(nbytes)
