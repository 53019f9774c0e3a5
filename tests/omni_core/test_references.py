"""References to what is imported only where it is used."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from omni_core.errors import CodecError, ConfigError
from omni_core.observe.telemetry import telemetry
from omni_core.processes import main
from omni_core.protocol import tensors
from omni_core.protocol.codec import decode, encode
from omni_core.references import imported, load
from omni_core.stage import thread


def half_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a module in ``sys.modules`` as it is while another thread imports it: without its names."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


def test_a_module_that_another_thread_imports_is_not_imported_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text("import slow_gate\nslow_gate.began.set()\nslow_gate.go_on.wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    gate = ModuleType("slow_gate")
    gate.began, gate.go_on = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow_gate", gate)
    assert imported("slow_module") is None
    importing = threading.Thread(target=importlib.import_module, args=("slow_module",))
    importing.start()
    gate.began.wait()
    assert "slow_module" in sys.modules
    assert imported("slow_module") is None
    gate.go_on.set()
    importing.join()
    assert imported("slow_module") is sys.modules.pop("slow_module")


def test_a_missing_module_is_an_error_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("nothing", "nothing.inner", "json.nothing", "needs.more"):
        with pytest.raises(ConfigError, match=f"'{module}:there': module '{module}' does not exist"):
            load(f"{module}:there")
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        load("needs_more:there")


@pytest.mark.parametrize("name", ["torch", "numpy", "opentelemetry.trace"])
def test_nothing_looks_into_a_module_that_is_imported_meanwhile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = numpy.arange(3.0)
    half_imported(name, monkeypatch)
    main.limit_torch_threads()
    assert not tensors.is_tensor(array)
    assert telemetry("p") is None
    thread._set_device(0)
    with pytest.raises(CodecError, match=r"a builtins\.object cannot be sent"):
        encode(object())
    if name != "numpy":
        assert decode(encode(array)).tolist() == [0.0, 1.0, 2.0]
