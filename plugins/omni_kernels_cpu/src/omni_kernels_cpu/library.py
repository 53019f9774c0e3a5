"""The compiled library through ctypes: loading, the C structures of native/interface.h, and the functions' types."""

from __future__ import annotations

import ctypes
import platform
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from omni_kernels_cpu import sound_structs

ABI = 11
_FOLDER = Path(__file__).parent
PATH = _FOLDER / "libomni_kernels_cpu.so"


class LibraryMissing(Exception):
    """The library was not compiled, or cannot be loaded; the message says why."""


class MatrixStruct(Structure):
    _fields_ = (
        ("weight", c_void_p), ("scales", c_void_p), ("bias", c_void_p), ("out", c_int64), ("inner", c_int64), ("kind", c_int64),
        ("group_scales", c_void_p), ("int8_inputs", c_int64), ("zero_points", c_int64),
    )  # fmt: skip


class LayerStruct(Structure):
    _fields_ = (
        ("input_norm", c_void_p), ("post_norm", c_void_p), ("head_norms", c_void_p), ("qkv", MatrixStruct), ("output", MatrixStruct),
        ("gate_up", MatrixStruct), ("down", MatrixStruct), ("shared_gate", MatrixStruct), ("router", MatrixStruct),
        ("experts", POINTER(MatrixStruct)), ("top_k", c_int64), ("normalize", c_int64), ("keys", c_void_p), ("values", c_void_p),
    )  # fmt: skip


class StackStruct(Structure):
    _fields_ = (
        ("layers", POINTER(LayerStruct)), ("norm", c_void_p), ("layer_count", c_int64), ("hidden", c_int64), ("heads", c_int64),
        ("kv_heads", c_int64), ("head_dim", c_int64), ("eps", c_double), ("pairs", c_int64),
    )  # fmt: skip


class StepStruct(Structure):
    _fields_ = (
        ("x", c_void_p), ("cos", c_void_p), ("sin", c_void_p), ("pages", c_void_p), ("lengths", c_void_p), ("output", c_void_p),
        ("captured", c_void_p), ("rows", c_int64), ("page_stride", c_int64), ("block_size", c_int64), ("capture", c_int64),
        ("dtype", c_int64), ("run", c_int64),
    )  # fmt: skip


class FramesStruct(Structure):
    _fields_ = (
        ("hidden", c_void_p), ("first", c_void_p), ("cos", c_void_p), ("sin", c_void_p), ("heads", POINTER(MatrixStruct)),
        ("embeddings", POINTER(c_void_p)), ("temperature", c_void_p), ("uniforms", c_void_p), ("codes", c_void_p), ("total", c_void_p),
        ("rows", c_int64), ("groups", c_int64), ("top_k", c_int64), ("dtype", c_int64), ("prompts", c_int64), ("embedded", c_int64),
        ("top_p", c_double),
    )  # fmt: skip


class AttentionStruct(Structure):
    _fields_ = (
        ("query", c_void_p), ("keys", c_void_p), ("values", c_void_p), ("slots", c_void_p), ("lengths", c_void_p), ("output", c_void_p),
        ("rows", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64), ("slot_stride", c_int64),
        ("dtype", c_int64), ("scale", c_double),
    )  # fmt: skip


class ExpertsStruct(Structure):
    _fields_ = (
        ("x", c_void_p), ("weights", c_void_p), ("chosen", c_void_p), ("gate_up", c_void_p), ("down", c_void_p), ("output", c_void_p),
        ("rows", c_int64), ("top_k", c_int64), ("experts", c_int64), ("hidden", c_int64), ("inner", c_int64), ("dtype", c_int64),
        ("first", c_int64),
    )  # fmt: skip


_NORM = (c_void_p, c_void_p, c_void_p, c_double, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int)
_ARGUMENTS = {
    "product": (POINTER(MatrixStruct), c_void_p, c_int64, c_int64, c_void_p, c_int),
    "rms_norm": _NORM,
    "attention": (POINTER(AttentionStruct), c_int),
    "experts": (POINTER(ExpertsStruct), c_int),
    "decode": (POINTER(StackStruct), POINTER(StepStruct), c_int),
    "prefill": (POINTER(StackStruct), POINTER(StepStruct), c_int),
    "frames": (POINTER(StackStruct), POINTER(FramesStruct), c_int),
    "measure_threads": (c_int,),
    "choices": (c_void_p, c_void_p, c_void_p, c_int64, c_void_p),
    "sound": (POINTER(sound_structs.StackStruct), POINTER(sound_structs.SoundStruct), c_int),
}


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library.

    Raises:
        LibraryMissing: it was not compiled, or cannot be loaded.
    """
    if not PATH.exists():
        reason = _FOLDER / "not_compiled.txt"
        said = reason.read_text().strip() if reason.exists() else f"{PATH.name} is missing from the installation"
        raise LibraryMissing(f"the library was not compiled: {said}")
    try:
        loaded = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise LibraryMissing(f"the library cannot be loaded: {error}") from error
    if (found := loaded.omni_cpu_abi()) != ABI:
        raise LibraryMissing(
            f"{PATH.name} has interface {found}, this version needs {ABI}; install omni-kernels-cpu again"
        )
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, f"omni_cpu_{name}")
        function.argtypes, function.restype = arguments, None
    loaded.omni_cpu_instruction_set.restype = c_char_p
    loaded.omni_cpu_sound_form.argtypes = (c_int64,)
    loaded.omni_cpu_use.argtypes = (c_char_p,)
    return loaded


def instruction_set() -> str:
    """Return the name of the instruction set in use: ``amx``, ``avx512_bf16``, ``avx512``, ``avx2`` or ``portable``."""
    name: bytes = library().omni_cpu_instruction_set()
    return name.decode()


def has_tiles() -> bool:
    """Return whether the instruction set in use multiplies tiles of bfloat16 (AMX)."""
    return instruction_set() == "amx"


def use(name: str | None) -> bool:
    """Use an instruction set, or the best (``None``), in this process; return False if the processor lacks it."""
    return bool(library().omni_cpu_use(None if name is None else name.encode()))


def measure_threads(on: bool) -> None:
    """Choose between a team of threads and the caller alone by measurement, in this process, as it is at first; or always take as many
    threads as PyTorch has.
    """
    library().omni_cpu_measure_threads(on)


def problem() -> str | None:
    """Return why the kernels are not used on this machine, or ``None``."""
    try:
        chosen = instruction_set()
    except LibraryMissing as error:
        return str(error)
    if chosen == "portable":
        return f"the processor ({platform.machine()}) has neither AVX2 nor AVX-512"
    return None
