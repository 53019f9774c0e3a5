"""Compile every Triton function of omni-kernels for a compute capability (``python compile_all.py 90``), without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from omni_kernels import decode, norms, rotary, sampling, snake

CONSTANTS = {"ADD": True, "PART": 512, "BLOCK": 1024, "GROUP": 16, "HALF": 64, "WIDTH": 128, "EXACT": False}
CONSTANTS |= {"HEADS": 4, "OUT": 128, "SAMPLES": snake.SAMPLES, "CHANNELS": snake.CHANNELS}
TYPES = {"read": "*i64", "lengths": "*i64", "mixed": "*fp32", "eps": "fp32", "scale": "fp32", "slots": "*i64"}
DATA = {"x", "residual", "total", "output", "alpha", "beta", "query", "queries", "keys", "values", "cos", "sin"}
DATA |= {"projected", "weights", "bias"}


def compiled(function: Any, dtype: str, capability: int, **special: Any) -> int:
    """Compile; the size of the machine code in bytes."""
    pointers = dict.fromkeys(DATA, f"*{dtype}")
    types = {**pointers, "weight": f"*{dtype}", **TYPES, **special.pop("types", {})}
    defaults = {**CONSTANTS, **special}
    constants = {name: defaults[name] for name in function.arg_names if name in defaults}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    places = {(function.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(function, signature=signature, constexprs=places)
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"])


def main(capability: int) -> None:
    for dtype in ("fp32", "bf16"):
        sums = {"types": {"weight": "*fp32"}}
        for function, special in (
            (norms._norm_row, {}),
            (rotary._turn, {}),
            (rotary._norm_turn_store, {}),
            (snake._activate, {}),
            (snake._convolve, {}),
            (decode._attend_part, {**sums, "BLOCK": decode.BLOCK}),
            (decode._join_parts, sums),
        ):
            if compiled(function, dtype, capability, **dict(special)):
                print(f"{function.__name__}-{dtype}")
    rows = {"logits": "*fp32", "largest": "*fp32", "listed": "*i32", "chosen": "*i64"}
    numbers = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "uniforms"), "*fp64")
    for function, constants in (
        (sampling._largest_of_spans, {"SPAN": sampling.SPAN, "GROUP": sampling.SPAN}),
        (sampling._choose, {"SPAN": sampling.SPAN, "SPANS": 512, "TILE": 1024}),
    ):
        if compiled(function, "fp32", capability, types={**rows, **numbers}, **constants):
            print(f"{function.__name__}-fp32")


if __name__ == "__main__":
    main(int(sys.argv[1]))
