"""The blocks of a Qwen3 decoder on the engine's contract: packed tokens in, attention through the batch's paged cache.

Architecture: Qwen3 with query/key norms, grouped-query attention, interleaved multimodal rotary positions and a sparse
mixture of experts, as in transformers' ``qwen3_omni_moe`` (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import nn

from omni_core.api import CacheAttention, PagedAttention
from omni_qwen3.config import DecoderConfig
from omni_torch.api import (
    ALONE,
    FewRowsLinear,
    Matrix,
    Pack,
    RMSNorm,
    ScaledLinear,
    TensorParallel,
    experts,
    matrix_of,
    norm_rotary,
    norm_rotary_store,
    one_by_one,
    pack,
    route_experts,
)

Activation = Callable[[torch.Tensor], torch.Tensor]

FEWEST_LOOKED_UP, MOST_LOOKED_UP = 1024, 16384
"""Positions whose cosines and sines are kept on a CPU: at first, and at most (8 MB with 64 inputs per head in float32)."""


def activation(name: str) -> Activation:
    """Return the function of a config's ``hidden_act``, one of :data:`omni_qwen3.encoder_config.ACTIVATIONS`."""
    functions: dict[str, Activation] = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
        "relu": F.relu,
    }
    return functions[name]


class Rotary(nn.Module):
    """Cosines and sines of rotary positions. With sections, the frequencies alternate between time, height and width.

    On a CPU those of whole positions, which text has, are looked up: a step of one row is as long as its number of operations.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.theta, self.dim, self.sections = config.rope_theta, config.head_dim, config.mrope_section
        self._frequencies: torch.Tensor | None = None
        self._tables: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, ``[n, 1, head_dim]`` each, of positions ``[n]`` or ``[3, n]``."""
        if positions.dim() == 2 and positions.stride(0) == 0:  # text: all axes are one, and mixing them changes nothing
            positions = positions[0]
        if positions.dim() == 1 and positions.dtype == torch.int64 and positions.device.type == "cpu":
            found = self._looked_up(positions, dtype)
            if found is not None:
                return found
        return self.compute(positions, dtype)

    def _looked_up(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the rows of the tables, which grow; ``None`` for positions that they have no room for."""
        tables = self._tables.get(dtype)
        if tables is not None:
            try:
                return tables[0].index_select(0, positions), tables[1].index_select(0, positions)
            except IndexError:
                pass
        lowest, highest = map(int, positions.aminmax()) if len(positions) else (0, 0)
        if lowest < 0 or highest >= MOST_LOOKED_UP:
            return None
        with torch.inference_mode(False), torch.no_grad():  # a table may be used where gradients are computed, too
            rows = torch.arange(min(max(2 * highest, FEWEST_LOOKED_UP), MOST_LOOKED_UP))
            self._tables[dtype] = self.compute(rows, dtype)
        return self._looked_up(positions, dtype)

    def compute(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same without a table."""
        if self._frequencies is None or self._frequencies.device != positions.device:
            steps = torch.arange(0, self.dim, 2, dtype=torch.float32, device=positions.device)
            self._frequencies = 1.0 / self.theta ** (steps / self.dim)
        angles = positions.float().unsqueeze(-1) * self._frequencies
        if angles.dim() == 3:
            time, height, width = angles.unbind(0)
            angles = time.clone()
            for axis, source in ((1, height), (2, width)):
                interleaved = slice(axis, self.sections[axis] * 3, 3)
                angles[:, interleaved] = source[:, interleaved]
        angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.heads, config.kv_heads, config.head_dim
        width, bias = (self.heads + 2 * self.kv_heads) * self.head_dim, config.attention_bias
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps)
        self._weights: torch.Tensor | None = None

    def head_weights(self) -> torch.Tensor:
        """Return the weights of both norms for each head, ``[heads + kv_heads, head_dim]``, joined at the first step.

        Queries and keys are normalised and rotated together, because the time of a step of one row is proportional to
        its number of operations.
        """
        if self._weights is None:
            queries, keys = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
            self._weights = torch.cat([queries, keys])
        return self._weights

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        projected = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        weights, eps = self.head_weights(), self.q_norm.eps
        if isinstance(attention, CacheAttention):
            query = norm_rotary_store(projected, weights, cos, sin, *attention.place(self.layer), eps)
            mixed = attention.attend(self.layer, query)
        else:
            turned, value = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
            query, key = norm_rotary(turned, weights, cos, sin, eps).split([self.heads, self.kv_heads], dim=1)
            mixed = attention(self.layer, query, key, value)
        return self.o_proj(mixed.reshape(x.shape[0], -1))


class MLP(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str) -> None:
        super().__init__()
        self.activation = activation(hidden_act)
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate) * up)


class Router(nn.Module):
    """The router of a mixture of experts: chooses each token's experts and their weights."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden_size))
        self.top_k, self.normalize = config.experts_per_token, config.norm_topk_prob

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights and expert numbers, ``[n, top_k]`` each, for tokens ``[n, hidden]``."""
        return route_experts(F.linear(x, self.weight), self.top_k, self.normalize)


class Experts(nn.Module):
    """The experts' stacked weights; only those of chosen experts are read.

    The operation ``experts``, which kernels replace, computes silu. Experts with another activation run one by one. With expert
    parallelism they are those of one rank, and choices of others add nothing.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._held, self._total = config.local_experts, config.experts
        count = config.experts if self._held is None else len(self._held)
        inner, hidden = config.moe_intermediate_size, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner))
        self._is_silu, self._activation = config.activation == "silu", activation(config.activation)
        self._packed: list[tuple[nn.Module, nn.Module]] = []
        self.gate_up_scales: torch.Tensor | None
        self.down_scales: torch.Tensor | None
        self.register_buffer("gate_up_scales", None)
        self.register_buffer("down_scales", None)

    def pack_weights(self, pack: Pack = pack) -> None:
        """Convert the weights to the layout of this CPU's kernels if that is faster, or for a GPU to 8 bits, and free the originals."""
        if self._packed or self.gate_up_scales is not None:
            return
        layers: list[tuple[nn.Module, nn.Module]] = []
        for gate_up, down in zip(self.gate_up_proj, self.down_proj, strict=True):
            first, second = pack(gate_up, None), pack(down, None)
            if first is None or second is None or isinstance(first, FewRowsLinear) or isinstance(second, FewRowsLinear):
                return  # the operation `experts` reads the stacked weights
            if isinstance(first, ScaledLinear) and isinstance(second, ScaledLinear):
                self._scale(pack)
                return
            layers.append((first, second))
        self._replace(layers)

    def _scale(self, pack: Pack) -> None:
        """Round the weights to values with a scale per output, which stay stacked; not those of experts that run one by one."""
        if not self._is_silu:
            return
        for kind in ("gate_up", "down"):
            weight: torch.Tensor = getattr(self, f"{kind}_proj")
            made = pack(weight.flatten(0, 1), None)
            assert isinstance(made, ScaledLinear), "as that of one expert"
            delattr(self, f"{kind}_proj")
            self.register_buffer(f"{kind}_proj", made.matrix.weight.view(weight.shape))
            self.register_buffer(f"{kind}_scales", made.scales.view(weight.shape[:2]))

    def describe_packed(self, describe: Callable[[int, int], nn.Module]) -> None:
        """Replace the weights by layers without values, which ``describe(out, in)`` makes; a checkpoint fills them."""
        (count, width, hidden), inner = self.gate_up_proj.shape, self.down_proj.shape[2]
        self._replace([(describe(width, hidden), describe(hidden, inner)) for _ in range(count)])

    def _replace(self, layers: list[tuple[nn.Module, nn.Module]]) -> None:
        self._packed, self.packed = layers, nn.ModuleList([layer for pair in layers for layer in pair])
        self.gate_up_proj.data = self.gate_up_proj.new_empty(0)
        self.down_proj.data = self.down_proj.new_empty(0)

    def matrices(self) -> list[tuple[Matrix | None, Matrix | None]]:
        """Return the matrices of each expert; ``None`` for one in a layout of its own."""
        if self._packed:
            return [(matrix_of(gate_up), matrix_of(down)) for gate_up, down in self._packed]
        gate_up = _matrices(self.gate_up_proj, self.gate_up_scales)
        return list(zip(gate_up, _matrices(self.down_proj, self.down_scales), strict=True))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return one_by_one(x, weights, chosen, self._packed_expert, self._held)
        if not self._is_silu:
            return one_by_one(x, weights, chosen, self._plain_expert, self._held)
        first, total = (0, None) if self._held is None else (self._held.start, self._total)
        if self.gate_up_scales is None:
            return experts(x, weights, chosen, self.gate_up_proj, self.down_proj, first, total)
        scales = self.gate_up_scales, self.down_scales
        return experts(x, weights, chosen, self.gate_up_proj, self.down_proj, first, total, *scales)

    def _plain_expert(self, number: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, self.gate_up_proj[number]).chunk(2, dim=-1)
        return F.linear(self._activation(gate) * up, self.down_proj[number])

    def _packed_expert(self, number: int, x: torch.Tensor) -> torch.Tensor:
        gate_up, down = self._packed[number]
        gate, up = gate_up(x).chunk(2, dim=-1)
        output: torch.Tensor = down(self._activation(gate) * up)
        return output


def _matrices(stack: torch.Tensor, scales: torch.Tensor | None) -> list[Matrix]:
    """Return the matrices of stacked weights, ``[experts, out, in]``, with their scales ``[experts, out]``."""
    rows = repeat(None) if scales is None else iter(scales)
    return [Matrix(weight, next(rows)) for weight in stack.detach()]


class SparseMLP(nn.Module):
    """A mixture of experts, with a gated shared expert where the config has one (the talker)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        if config.shared_expert_size:
            self.shared_expert = MLP(config.hidden_size, config.shared_expert_size, config.activation)
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)
        self.has_shared = bool(config.shared_expert_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.experts(x, *self.gate(x))
        if self.has_shared:
            mixed = mixed + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return mixed


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual.

    Sharded (``parallel``, with the config of :func:`omni_qwen3.sharding.local_config`), each rank has some of the heads and a
    slice of every expert, or some of the experts whole, and both sums are taken over the ranks.
    """

    def __init__(self, config: DecoderConfig, layer: int, parallel: TensorParallel = ALONE) -> None:
        super().__init__()
        self.parallel = parallel
        self.self_attn = Attention(config, layer)
        sparse = config.is_sparse(layer)
        self.mlp = SparseMLP(config) if sparse else MLP(config.hidden_size, config.intermediate_size, config.activation)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        mixed = self.parallel.all_reduce(self.self_attn(self.input_layernorm(x), cos, sin, attention))
        x, normed = self.post_attention_layernorm.add(x, mixed)
        return x + self.parallel.all_reduce(self.mlp(normed))
