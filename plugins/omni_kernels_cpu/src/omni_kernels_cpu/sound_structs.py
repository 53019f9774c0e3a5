"""The C structures of native/sound_interface.h."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_int64, c_void_p


class SnakeStruct(Structure):
    _fields_ = (("frequency", c_void_p), ("scale", c_void_p))


class LayerStruct(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("kind", "inputs", "outputs", "taps", "dilation", "rate", "trims", "inner", "memory")),
        *((name, c_void_p) for name in ("first", "second", "first_bias", "second_bias")),
        ("before", SnakeStruct), ("between", SnakeStruct),
        *((name, c_void_p) for name in ("depthwise", "depthwise_bias", "norm", "norm_bias", "gamma")),
        ("eps", c_double),
    )  # fmt: skip


class StackStruct(Structure):
    _fields_ = (("layers", POINTER(LayerStruct)), ("count", c_int64), ("form", c_int64))


class SoundStruct(Structure):
    _fields_ = (
        ("x", c_void_p), ("memory", c_void_p), ("output", c_void_p),
        *((name, c_int64) for name in ("batch", "columns", "memory_size", "samples", "begun", "dtype")),
    )  # fmt: skip
