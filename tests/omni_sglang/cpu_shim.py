"""Lets SGLang be imported and run on a machine without a GPU. For tests only: no part of it is in a wheel.

SGLang's Linux build imports three things that exist for GPUs only. Here they are empty stubs: Triton (SGLang ships a
mock, for macOS), ``sgl_kernel``, and two operators that torchvision's CUDA build would register. Everything else is
real: the scheduler, the KV pool, the radix cache, the attention in PyTorch. SGLang's kernels are *not* tested this way.

The processes of a pipeline get it through ``site/sitecustomize.py``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _OnImport:
    """Prepares the process when SGLang or torchvision is about to be imported; other processes are not affected."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("sglang", "torchvision") and name not in self._seen:
            self._seen.add(name)
            if name == "sglang":
                _prepare_for_sglang()
            else:
                _declare_torchvision_operators()


def install() -> None:
    """Make SGLang importable from now on."""
    sys.meta_path.insert(0, _OnImport())  # type: ignore[arg-type]


def _prepare_for_sglang() -> None:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    _stand_in_for_triton()
    _stand_in_for_sgl_kernel()


def _stand_in_for_triton() -> None:
    """SGLang's own mock of Triton, with the names that must be classes or functions of their own."""
    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = os.path.join(package.submodule_search_locations[0], "_platform_stubs.py")
    spec = importlib.util.spec_from_file_location("omni_sglang_platform_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = stubs
    spec.loader.exec_module(stubs)
    sys.meta_path.insert(0, stubs._TritonFinder())
    content: dict[str, dict[str, Any]] = {
        "triton": {
            "__version__": "3.0.0",
            "cdiv": stubs._cdiv,
            "next_power_of_2": stubs._next_power_of_2,
            "Config": stubs._Config,
        },
        "triton.language": {"constexpr": type("constexpr", (), {"__init__": lambda self, value=None: None})},
        "triton.language.extra": {},
        "triton.language.extra.libdevice": {},
        "triton.runtime": {},
        "triton.runtime.jit": {name: type(name, (), {}) for name in ("JITFunction", "KernelInterface")},
        "triton.runtime.cache": {"triton_key": stubs._triton_key},
        "triton.runtime.autotuner": {name: type(name, (Exception,), {}) for name in ("OutOfResources", "PTXASError")},
        "triton.runtime.driver": {},
        "triton.compiler": {"CompiledKernel": type("CompiledKernel", (), {})},
        "triton.compiler.compiler": {"ASTSource": type("ASTSource", (), {}), "triton_key": stubs._triton_key},
        "triton.backends": {},
        "triton.backends.compiler": {"GPUTarget": type("GPUTarget", (), {})},
    }
    for name, attributes in content.items():
        module = stubs._make_mock(name)
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class _Absent(ModuleType):
    """A module whose every name is a function that raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels in a test without a GPU")

        return absent


def _stand_in_for_sgl_kernel() -> None:
    for name in ("sgl_kernel", "sgl_kernel.kvcacheio"):
        module = _Absent(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module


def _declare_torchvision_operators() -> None:
    """Register two operators, without which a torchvision built for CUDA cannot be imported beside a torch built
    without it.
    """
    import torch

    for name, schema in (
        ("nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
        ("qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
    ):
        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
