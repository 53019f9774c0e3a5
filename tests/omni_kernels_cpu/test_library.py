"""The library that is missing or does not fit, calls from several threads, calls after a fork, and the build without a compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch

from omni_core.plugins import load_plugins
from omni_kernels_cpu import library, rows
from omni_torch.operations.decoder_stack import prefill_layers
from omni_torch.operations.few_rows import FewRowsLinear, few_rows_linear
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.placement import devices as placement
from omni_torch.quantization.packed_linear import pack_decoder

SOURCES = Path(__file__).parents[2] / "plugins/omni_kernels_cpu"

needs_library = pytest.mark.skipif(library.problem() is not None, reason=str(library.problem()))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which the library is looked for."""
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "PATH", tmp_path / library.PATH.name)
    library.library.cache_clear()
    yield tmp_path
    library.library.cache_clear()


def test_a_library_that_was_not_compiled_says_why(elsewhere: Path) -> None:
    assert library.problem() == f"the library was not compiled: {library.PATH.name} is missing from the installation"
    (elsewhere / "not_compiled.txt").write_text("no C++ compiler was found when it was built (apt install g++)\n")
    assert str(library.problem()).endswith("no C++ compiler was found when it was built (apt install g++)")
    library.PATH.write_bytes(b"no library")
    assert "cannot be loaded" in str(library.problem())
    assert not placement._has_kernel_for_bfloat16(), "the memory that a start needs is counted without it"


@needs_library
def test_the_memory_of_a_start_is_counted_with_the_library() -> None:
    assert placement._has_kernel_for_bfloat16()


def test_without_the_library_the_reference_runs(elsewhere: Path) -> None:
    install({name: some for name, some in kernel_specs(load_plugins()).items() if name == "few_rows_linear"})
    x, weight = torch.randn(2, 8), torch.randn(3, 8)
    try:
        assert not few_rows_linear.replaced("cpu", torch.float32)
        assert torch.equal(few_rows_linear(x, weight), torch.nn.functional.linear(x, weight))
    finally:
        install({})


@needs_library
def test_layers_keep_their_weights_where_the_kernel_is_installed() -> None:
    install(kernel_specs(load_plugins()))
    try:
        weight = torch.randn(30, 20)
        layer = pack_decoder(weight)
        assert isinstance(layer, FewRowsLinear)
        assert layer.matrix.weight.data_ptr() == weight.data_ptr(), "not a copy"
        for count in (1, 16, 17, 40):
            x = torch.randn(count, 20)
            torch.testing.assert_close(layer(x), x @ weight.T)
    finally:
        install({})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prompts_have_a_kernel_with_every_instruction_set(instruction_set: str, dtype: torch.dtype) -> None:
    """PyTorch multiplies bfloat16 without AVX-512 at a tenth of the processor's rate."""
    install(kernel_specs(load_plugins()))
    try:
        assert prefill_layers.replaced("cpu", dtype) == (instruction_set != "portable")
    finally:
        install({})


@needs_library
def test_calls_from_several_threads_at_once() -> None:
    """One pool serves all; a call that finds it busy computes alone."""
    before = torch.get_num_threads()
    weight, inputs = torch.randn(300, 200), [torch.randn(5, 200) for _ in range(8)]
    right = [rows.few_rows_linear(each, weight) for each in inputs]

    library.measure_threads(False)

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        torch.set_num_threads(3)
        return [rows.few_rows_linear(x, weight) for _ in range(60)]

    try:
        with ThreadPoolExecutor(4) as pool:
            for made, expected in zip(pool.map(work, inputs), right, strict=True):
                assert all(torch.equal(each, expected) for each in made)
    finally:
        library.measure_threads(True)
        torch.set_num_threads(before)


def teams(alone: list[float], together: list[float], all_had: list[bool] | None = None) -> list[int]:
    """Return 1 for each call of one load that a team computes, given the milliseconds of all calls both ways.

    ``all_had``: whether each thread of a team has a processor for all of the call.
    """
    had = (ctypes.c_int8 * len(alone))(*(all_had or [False] * len(alone)))
    times = [(ctypes.c_double * len(each))(*(one / 1000 for one in each)) for each in (alone, together)]
    made = (ctypes.c_int8 * len(alone))()
    library.library().omni_cpu_choices(*times, had, len(alone), made)
    return list(made)


@needs_library
def test_threads_are_chosen_by_measurement() -> None:
    """The slower way is tried seldom, a single hiccup changes nothing for long, and what becomes slower is left."""
    assert sum(teams([2.0] * 4000, [1.0] * 4000)[6:]) >= 3980
    assert sum(teams([1.0] * 4000, [15.0] * 4000)[6:]) <= 10
    assert teams([1.0] * 6, [2.0] * 6) == [1, 0, 1, 0, 1, 0], "both ways are tried at first"
    cold = teams([2.0] * 200, [15.0, 15.0, 1.0] + [1.0] * 197)
    assert sum(cold[6:]) >= 185, "the first calls, which read weights for the first time, do not decide"
    hiccups = [1.0 if number % 50 else 100.0 for number in range(1, 4001)]
    assert sum(teams([2.0] * 4000, hiccups)[6:]) >= 3900
    # Others need the processors from call 1,000 to call 2,000.
    busy = teams([2.0] * 4000, [1.0] * 1000 + [9.0] * 1000 + [1.0] * 2000)
    assert sum(busy[900:1000]) >= 99
    assert sum(busy[1020:2000]) <= 20
    assert sum(busy[3100:]) >= 890


@needs_library
def test_long_calls_are_tried_less() -> None:
    """A prompt that takes half a second alone is computed so once before a team is known to be faster."""
    assert teams([500.0] * 12, [300.0] * 12) == [1, 1, 0] + [1] * 9
    assert teams([500.0] * 12, [900.0] + [300.0] * 11) == [1, 1, 0] + [1] * 9, "the first call reads weights"
    assert sum(teams([300.0] * 4000, [500.0] * 4000)) <= 12


@needs_library
def test_a_team_that_had_all_its_processors_is_not_doubted() -> None:
    for length in (500.0, 5.0):
        assert teams([length] * 12, [0.6 * length] * 12, [True] * 12) == [1] * 12
    # Another process takes a processor from call 4 on, and gives it back in call 100.
    lost = teams([500.0] * 200, [300.0] * 4 + [900.0] * 96 + [300.0] * 100, [True] * 4 + [False] * 96 + [True] * 100)
    assert lost[:6] == [1, 1, 1, 1, 1, 0]
    assert sum(lost[6:100]) <= 20
    assert sum(lost[160:]) == 40
    short = teams([0.1] * 4000, [0.9] * 4000, [True] * 4000)
    assert sum(short[6:]) <= 10, "a short call waits longer for its threads than they help"


@needs_library
def test_measured_calls_have_the_same_results() -> None:
    before = torch.get_num_threads()
    x, weight = torch.randn(3, 70), torch.randn(90, 70)
    right = rows.few_rows_linear(x, weight)
    try:
        torch.set_num_threads(2)
        assert all(torch.equal(rows.few_rows_linear(x, weight), right) for _ in range(60))
    finally:
        torch.set_num_threads(before)


FORKED = """
import os, torch
from omni_kernels_cpu import library, rows
library.measure_threads(False)
torch.set_num_threads(3)
x, weight = torch.ones(2, 64), torch.ones(50, 64)
rows.few_rows_linear(x, weight)
child = os.fork()
good = bool((rows.few_rows_linear(x, weight) == 64).all())
if child == 0:
    os._exit(0 if good else 3)
_, status = os.waitpid(child, 0)
print(good, os.waitstatus_to_exitcode(status))
"""


@needs_library
def test_a_process_that_was_forked_makes_threads_of_its_own() -> None:
    said = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split() == ["True", "0"], said.stderr


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_omni_kernels_cpu", SOURCES / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_build_without_a_compiler_goes_on_and_leaves_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = build_script()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not script.compile_library(tmp_path)
    assert "apt install g++" in (tmp_path / "not_compiled.txt").read_text()
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'this compiler is too old' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("PATH", os.defpath)
    assert not script.compile_library(tmp_path)
    assert (tmp_path / "not_compiled.txt").read_text() == f"{failing} failed: this compiler is too old\n"
    assert not (tmp_path / library.PATH.name).exists()


@needs_library
def test_a_compiler_that_lacks_an_instruction_set_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = build_script()
    monkeypatch.setattr(script, "FLAGS", [flag for flag in script.FLAGS if flag != "-O3"])
    monkeypatch.setattr(script, "INSTRUCTION_SETS", {"portable": [], "amx": ["-mno-such-instructions"]})
    assert script.compile_library(tmp_path)
    assert "leaves out amx" in capsys.readouterr().err
    made = ctypes.CDLL(str(tmp_path / library.PATH.name))
    made.omni_cpu_use.argtypes = (ctypes.c_char_p,)
    assert made.omni_cpu_use(b"portable")
    assert not made.omni_cpu_use(b"amx")
