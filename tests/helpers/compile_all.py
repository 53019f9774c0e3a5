"""Compile every Triton function of omni-kernels for a compute capability (``python compile_all.py 90``), without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from omni_kernels import (
    decode,
    experts,
    narrow_products,
    norms,
    part_attention,
    rotary,
    row_experts,
    row_products,
    sampling,
    snake,
)

CONSTANTS = {"ADD": True, "PART": 512, "BLOCK": 1024, "GROUP": 16, "HALF": 64, "WIDTH": 128, "EXACT": False}
CONSTANTS |= {"NORMALIZE": True, "EXPERTS": 128, "TOP_K": 8, "ROWS": 16, "CHUNK": experts.CHUNK}
CONSTANTS |= {"SCALED": False, "HEADS": 4, "OUT": 128, "SAMPLES": snake.SAMPLES, "CHANNELS": snake.CHANNELS}
TYPES = {"read": "*i64", "lengths": "*i64", "mixed": "*fp32", "eps": "fp32", "scale": "fp32", "slots": "*i64"}
DATA = {"x", "residual", "total", "output", "alpha", "beta", "query", "queries", "keys", "values", "cos", "sin"}
TYPES |= {"scales": "*fp32", "chosen": "*i64", "order": "*i32", "table": "*i32", "used": "*i32"}
DATA |= {"projected", "weights", "bias", "logits", "gated", "shares"}

SHARED = 99 * 1024
"""Bytes of shared memory that a program may use on every GPU of compute capability 8.0 and above."""


def compiled(function: Any, dtype: str, capability: int, **special: Any) -> Any:
    """Compiled for a dtype. ``special`` has other values of constants, ``types``, ``options``, and the arguments that
    are a ``multiple`` of 16.
    """
    pointers = dict.fromkeys(DATA, f"*{dtype}")
    types = {**pointers, "weight": f"*{dtype}", **TYPES, **special.pop("types", {})}
    names, values = function.arg_names, {**CONSTANTS, **special}
    constants = {name: values[name] for name in names if name.isupper()}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    multiples = {(names.index(name),): [["tt.divisibility", 16]] for name in special.get("multiple", ())}
    source = ASTSource(function, signature=signature, constexprs=places, attrs=multiples)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=special.get("options"))


def products(dtype: torch.dtype, weight: str | None = None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The grouped products with their smallest and largest tiles. At multiples of 16 their loads overlap in shared memory. ``weight``: the
    type of weights of 8 bits.
    """
    for pairs in (8, 8 * 8192):
        for function, tile in zip((experts._gate_up, experts._down), experts.tiles(pairs, 128, dtype), strict=True):
            stored = {} if weight is None else {"weight": f"*{weight}"}
            sums = {"types": {"parts": "*fp32", **stored}, "SCALED": weight is not None}
            sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth}
            pointers = [name for name in function.arg_names if name in DATA | {"weight"}]
            strides = {"hidden", "inner", "x_row", "weight_expert", "weight_row"}.intersection(function.arg_names)
            options = {"num_warps": tile.warps, "num_stages": tile.stages}
            yield function, {**sums, **sizes, "multiple": [*pointers, *strides], "options": options}


def steps(capability: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The kernels of decode steps, with the tiles that they have and as they overlap on this capability."""
    overlaps = capability >= 90
    types = {
        "x": "*fp32",
        "norm": "*bf16",
        "matrix": "*bf16",
        "residual": "*fp32",
        "chosen": "*i32",
        "shares": "*fp32",
        "logits": "*fp32",
    }
    types |= {
        "gated": "*bf16",
        "parts": "*fp32",
        "arrived": "*i32",
        "shared": "*fp32",
        "shared_logit": "*fp32",
        "projected": "*fp32",
    }
    attention = {
        **types,
        "pages": "*i32",
        "lengths": "*i32",
        "weights": "*bf16",
        "weight": "*fp32",
        "parts": "i32",
        "output": "*bf16",
    }
    flags = {"NORM": True, "BIAS": True, "RESIDUAL": True, "SHARED": True, "NORMALIZE": True}
    for matrix in _weights(capability):
        stored = {**flags, "SCALED": matrix != "bf16"}
        sums, gated = ({**types, "matrix": f"*{matrix}", "output": output} for output in ("*fp32", "*bf16"))
        for tile in (row_products.FEW, row_products.WIDE, row_products.DEEP)[0 if matrix == "bf16" else 1 :]:
            yield row_products._row_product, {**_tile(tile, overlaps), **stored, "types": sums}
        for function in (row_products._row_gated, row_experts._single_gate_up):
            yield function, {**_tile(row_products.GATED, overlaps), **stored, "types": gated}
        yield row_experts._single_down, {**_tile(row_experts.DOWN, overlaps), **stored, "types": sums}
    for matrix in _weights(capability)[1:]:
        for rows in (16, narrow_products.MOST_ROWS):
            yield narrow_products._narrow_product, _narrow(matrix, rows)
    shared = {"types": attention, "OVERLAP": int(overlaps), "GROUP": 16, "HALF": 64}
    few, many = part_attention.SPAN_OF_FEW, part_attention.SPAN_OF_MANY
    for span, pairs in ((few, False), (few, True), (many, False)):
        sizes = {"PART": span.part, "BLOCK": span.block, "PAIRS": pairs}
        yield part_attention._attend, {**shared, **sizes, "NORM": True, "ALONE": False}
    yield part_attention._join, {**shared, "PARTS": 16, "PART": 64}


def _weights(capability: int) -> list[str]:
    """Return the types of weights, floats of 8 bits where they can be compiled
    (:data:`omni_torch.quantization.scaled_linear.FLOAT8_CAPABILITY`).
    """
    return ["bf16", "i8", *(["fp8e4nv"] if capability >= 89 else [])]


def _narrow(matrix: str, rows: int) -> dict[str, Any]:
    """Return how a product with weights of 8 bits is compiled. At multiples of 16 its loads overlap in shared memory."""
    sizes = {"ROWS": rows, "COLUMNS": narrow_products.COLUMNS, "DEPTH": narrow_products.DEPTH, "BIAS": True}
    types = {"x": "*bf16", "matrix": f"*{matrix}", "bias": "*bf16", "output": "*bf16"}
    multiple = ["x", "matrix", "scales", "bias", "output", "inner", "columns", "x_row", "matrix_row"]
    return {**sizes, "types": types, "multiple": multiple, "options": {"num_warps": 4, "num_stages": 4}}


def _tile(tile: Any, overlaps: bool) -> dict[str, Any]:
    sizes = {"COLUMNS": tile.columns, "DEPTH": tile.depth, "OVERLAP": tile.overlap if overlaps else 0}
    return {**sizes, "options": {"num_warps": tile.warps}}


def main(capability: int) -> None:
    for function, special in steps(capability):
        made = compiled(function, "bf16", capability, **dict(special))
        if made.asm["cubin"] and made.metadata.shared <= SHARED:
            names = ("ROWS", "COLUMNS", "DEPTH", "PART", "PAIRS")
            sizes = [special["types"]["matrix"].lstrip("*"), *(str(special[name]) for name in names if name in special)]
            print("-".join([function.__name__, *sizes]))
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        sums = {"types": {"weight": "*fp32"}}
        for function, special in (
            (norms._norm_row, {}),
            (rotary._turn, {}),
            (rotary._norm_turn_store, {}),
            (snake._activate, {}),
            (snake._convolve, {}),
            (decode._attend_part, {**sums, "BLOCK": decode.BLOCK}),
            (decode._join_parts, sums),
            (experts._route, {}),
            *((experts._group, {"EXPERTS": 256, "SOME": some}) for some in (False, True)),
            *((experts._sum_parts, {"types": {"parts": "*fp32"}, "SOME": some}) for some in (False, True)),
            *products(dtype),
            *(each for weight in _weights(capability)[1:] if name == "bf16" for each in products(dtype, weight)),
        ):
            made, rows = compiled(function, name, capability, **dict(special)), special.get("ROWS", "")
            if made.asm["cubin"] and made.metadata.shared <= SHARED:
                weight = special["types"]["weight"].replace("*", "-") if special.get("SCALED") else ""
                print(
                    f"{function.__name__}-{name}{weight}{rows and f'-{rows}'}{'-some' if special.get('SOME') else ''}"
                )
    rows = {"logits": "*fp32", "largest": "*fp32", "listed": "*i32", "chosen": "*i64"}
    numbers = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "uniforms"), "*fp64")
    draws: list[tuple[Any, dict[str, Any]]] = [(sampling._largest_of_spans, {"GROUP": sampling.SPAN})]
    for vocab in (3072, 152064):
        ids, warps = sampling.tile(vocab)
        spans = triton.next_power_of_2(triton.cdiv(vocab, sampling.SPAN))
        draws.append((sampling._choose, {"SPANS": spans, "TILE": ids, "options": {"num_warps": warps}}))
    for function, special in draws:
        made = compiled(function, "fp32", capability, types={**rows, **numbers}, SPAN=sampling.SPAN, **special)
        if made.asm["cubin"] and made.metadata.shared <= SHARED:
            print(f"{function.__name__}-fp32-{special.get('SPANS', '')}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
