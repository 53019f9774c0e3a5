"""Operations: the reference if no kernel fits, the best kernel that can work if one does, and the path of kernels to a
process.
"""

from __future__ import annotations

import os
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import PluginError
from omni_core.hookspecs import Component, KernelComponent
from omni_core.launch.prepare import prepare
from omni_core.plugins.discovery import PluginRecord, PluginStatus
from omni_core.plugins.registry import PluginRegistry
from omni_core.protocol.codec import decode, encode
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.specs import KernelSpec
from omni_torch.operations.code_frames import code_frames
from omni_torch.operations.comparison import FEWEST_ROUNDS, ContractViolation, compare, relative_error
from omni_torch.operations.experts import experts, route_experts
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernels import operation
from omni_torch.operations.shared import add_rms_norm, rms_norm, snake_beta
from omni_torch.plugin import omni_services

command = import_module("omni_cli.plugins")

ME = "kernel_examples"
SOURCE = """
import os

asked = []
def fits():
    asked.append(os.getpid())
def refuses():
    return "too old a card"
def breaks():
    raise OSError("no driver")
def plain(x, weight, eps):
    return x * 0 + 1
def better(x, weight, eps):
    return x * 0 + 2
def right(x, weight, eps):
    import torch.nn.functional as F
    return F.rms_norm(x, weight.shape, weight, eps)
def explodes(x, weight, eps):
    raise ValueError("kernel exploded")
def exits(x, weight, eps):
    raise SystemExit(4)
def cuts(x, weight, eps):
    return right(x, weight, eps)[:1]
def spoils(x, weight, eps):
    return right(x.mul_(2), weight, eps)
def stage():
    def compute(payload):
        import torch
        from omni_torch.operations.shared import rms_norm
        payload.data = {"value": float(rms_norm(torch.zeros(1), torch.ones(1), 1.0)), "here": asked == [os.getpid()]}
        return payload
    return compute
"""


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / f"{ME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    yield __import__(ME)
    install({})
    sys.modules.pop(ME)


def spec(target: str, priority: int = 0, probe: str | None = None, **fields: Any) -> KernelSpec:
    values = {"device": "cpu", "dtypes": ["float32"], "requires": [], **fields}
    probe = probe and f"{ME}:{probe}"
    return KernelSpec(name=target, priority=priority, target=f"{ME}:{target}", probe=probe, **values)


def answer(dtype: torch.dtype = torch.float32) -> float:
    return float(rms_norm(torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype), 1.0))


def test_the_kernel_of_highest_priority_that_works_is_used(examples: Any) -> None:
    install({"rms_norm": [spec("plain"), spec("better", 1, "fits")]})
    assert [answer(), answer()] == [2.0, 2.0]
    assert len(examples.asked) == 1, "its probe is asked once"
    install({"rms_norm": [spec("plain"), spec("better", -1)]})
    assert answer() == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"probe": "refuses"},
        {"probe": "breaks"},
        {"requires": ["no_such_module"]},
        {"device": "cuda"},
        {"dtypes": ["float16"]},
    ],
    ids=str,
)
def test_an_unsuitable_kernel_is_skipped(examples: Any, fields: dict[str, Any]) -> None:
    install({"rms_norm": [spec("plain"), spec("better", 1, **fields)]})
    assert answer() == 1.0
    install({"rms_norm": [spec("better", 1, **fields)]})
    assert answer() == 0.0, "the reference"


def test_a_kernel_whose_target_is_missing_is_logged(examples: Any, caplog: pytest.LogCaptureFixture) -> None:
    install({"rms_norm": [spec("missing")]})
    assert answer() == 0.0
    assert "kernel missing of rms_norm is not used, because ConfigError" in caplog.text


def test_the_choice_is_one_per_dtype(examples: Any) -> None:
    install({"rms_norm": [spec("plain"), spec("better", dtypes=["float16"])]})
    assert (answer(), answer(torch.float16), answer(torch.float64)) == (1.0, 2.0, 0.0)
    install({"rms_norm": [spec("plain", dtypes=[])]})
    assert answer(torch.float64) == 1.0


def test_references_are_what_models_computed_before() -> None:
    x, y, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)
    normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), normed)
    total, normed = add_rms_norm(x, y, weight, 1e-6)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, rms_norm(x + y, weight, 1e-6))
    waved = x + torch.sin(x * weight[:3, None].exp()) ** 2 / weight[3:6, None].exp()
    torch.testing.assert_close(snake_beta(x, weight[:3], weight[3:6]), waved)


@pytest.mark.parametrize("normalize", [True, False])
def test_routing_is_a_softmax_over_all_experts_and_its_largest(normalize: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, -2.0, 0.5, 3.5]]).bfloat16()
    weights, chosen = route_experts(logits, 2, normalize)
    assert chosen.tolist() == [[1, 2], [3, 0]]
    assert (weights.dtype, chosen.dtype) == (torch.bfloat16, torch.int64)
    shares = logits.float().exp() / logits.float().exp().sum(-1, keepdim=True)
    largest = shares.gather(1, chosen)
    expected = largest / largest.sum(-1, keepdim=True) if normalize else largest
    torch.testing.assert_close(weights, expected.bfloat16())
    assert route_experts(logits.double(), 2, normalize)[0].dtype == torch.float64


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_experts_are_gated_and_summed_with_their_weights(rows: int, dtype: torch.dtype) -> None:
    x, gate_up, down = (torch.randn(shape).to(dtype) for shape in ((rows, 8), (5, 6, 8), (5, 8, 3)))
    weights, chosen = torch.rand(rows, 2).to(dtype), torch.tensor([[3, 1], [1, 0], [0, 3], [3, 0]])[:rows]
    expected = torch.zeros(rows, 8, dtype=dtype)
    for row in range(rows):
        for weight, expert in zip(weights[row], chosen[row], strict=True):
            gate, up = (gate_up[expert] @ x[row]).split(3)
            expected[row] += weight * (down[expert] @ (gate / (1 + torch.exp(-gate)) * up))
    torch.testing.assert_close(experts(x, weights, chosen, gate_up, down), expected)


def component(target: str, **fields: Any) -> KernelComponent:
    values = {"operation": "rms_norm", "device": "cpu", "dtypes": ("float32",), **fields}
    return KernelComponent(target, f"{ME}:{target}", "an example", **values)


def registry(*components: Component) -> PluginRegistry:
    record = PluginRecord("examples", "dist-examples", "1.0", ME, PluginStatus.LOADED)
    record.components |= {"omni_kernels": list(components), "omni_services": [*omni_services()]}
    return PluginRegistry([record])


def test_a_kernel_that_raises_is_named_with_its_plugin(examples: Any) -> None:
    install({"rms_norm": [spec("explodes", plugin="mine (dist-mine)")]})
    with pytest.raises(PluginError) as caught:
        answer()
    expected = (
        "kernel 'explodes' of plugin mine (dist-mine) failed in operation 'rms_norm': ValueError: kernel exploded"
    )
    assert str(caught.value) == f"{expected}; OMNI_DISABLE_PLUGINS=mine computes without it"
    assert isinstance(caught.value.__cause__, ValueError)
    install({})
    with pytest.raises(TypeError):  # an exception of the reference is not changed
        rms_norm(1)


def launch_specs(folder: Path, found: PluginRegistry) -> Any:
    stage = StageConfig(name="ask", process="ask", factory=f"{ME}:stage", terminal=True)
    prepared = prepare(PipelineConfig(model_path="none", stages=[stage]), found)
    return decode(encode(prepared.units[0].processes[0])).kernels


def test_a_launch_spec_carries_what_is_installed(examples: Any, tmp_path: Path) -> None:
    found = registry(component("plain", probe=examples.fits, priority=3, requires=("torch",)), component("better"))
    sent = launch_specs(tmp_path, found)
    assert set(sent) == {"rms_norm"}
    assert sorted(sent["rms_norm"], key=lambda each: each.name)[1] == spec(
        "plain", 3, "fits", requires=["torch"], plugin="examples (dist-examples)"
    )
    assert not examples.asked, "the parent asks no probe: it may have no such device"


def test_a_kernel_that_cannot_be_sent_is_skipped_and_logged(
    examples: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = registry(
        component("plain", probe=lambda: None), component("better"), component("right"), component("right")
    )
    assert [each.name for each in launch_specs(tmp_path, found)["rms_norm"]] == ["better"]
    assert "the probe of 'plain'" in caplog.text
    assert "'right' is provided twice" in caplog.text


async def test_a_stage_process_runs_the_installed_kernel(examples: Any) -> None:
    stage = StageConfig(name="ask", process="ask", factory=f"{ME}:stage", terminal=True)
    config = PipelineConfig(model_path="none", stages=[stage])
    found = registry(component("plain"), component("better", priority=1, probe=examples.fits))
    for registered, expected in ((found, {"value": 2.0, "here": True}), (registry(), {"value": 0.0, "here": False})):
        async with open_async(config, registry=registered) as client:
            assert (await client.submit(OmniRequest(inputs=None)))["ask"] == expected


@pytest.mark.parametrize(
    ("fields", "code", "expected"),
    [
        ({"target": "right"}, 0, "      float32: error "),
        ({"target": "better"}, 1, "no    float32: error "),
        ({"target": "right", "dtypes": ()}, 0, "      bfloat16: error "),
        ({"target": "right", "dtypes": ("int8",)}, 1, "its dtype 'int8' cannot be compared"),
        ({"target": "right", "operation": "other"}, 1, "is not an Operation called 'other'"),
        ({"target": "exits"}, 1, "cannot be compared with its reference: SystemExit: 4"),
        ({"target": "explodes"}, 1, "cannot be compared with its reference: ValueError: kernel exploded"),
        ({"target": "cuts"}, 1, "no    float32: it returns [1, "),
        ({"target": "spoils"}, 1, "no    float32: it changes its argument 'x', which the operation does not write"),
        ({"target": "right", "reference": "json:loads"}, 1, "json:loads is no operation (it has no `compare`)"),
    ],
    ids=str,
)
def test_check_compares_a_kernel_with_its_reference(
    examples: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], code: int, expected: str
) -> None:
    fields = {"reference": "omni_torch.operations.shared:rms_norm", **fields}
    monkeypatch.setattr(command, "load_plugins", lambda: registry(component(**fields)))
    result = CliRunner().invoke(command.check)
    assert expected in result.output
    speeds = re.findall(r"(\d+\.\d+) times as fast as PyTorch \((.*) to (.*), up to (\[.*\] x \[.*\])\)", result.output)
    assert bool(speeds) == (expected.endswith("error "))
    assert all(float(low) <= float(median) <= float(high) for median, low, high, _ in speeds)
    assert result.exit_code == code


def test_check_says_only_the_reason_where_a_kernel_cannot_work(examples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = component("better", probe=examples.refuses, reference="omni_torch.operations.shared:rms_norm")
    monkeypatch.setattr(command, "load_plugins", lambda: registry(one))
    result = CliRunner().invoke(command.check)
    assert result.output.splitlines()[0] == "no  kernel better (dist-examples): too old a card"
    assert result.exit_code == 0


def test_nan_and_wrong_shapes_fail_the_comparison() -> None:
    arguments = (torch.ones(2, 3), torch.ones(3), 1e-6)
    assert relative_error(rms_norm, lambda x, weight, eps: x * float("nan"), arguments) == float("inf")
    with pytest.raises(
        ContractViolation, match=r"it returns \[1, 3\], the reference \[2, 3\] \(for \[2, 3\] x \[3\]\)"
    ):
        relative_error(rms_norm, lambda x, weight, eps: x[:1], arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_of_examples_do_not_depend_on_rounding(dtype: torch.dtype) -> None:
    for seed in range(8):
        for example in code_frames.examples(dtype, torch.Generator().manual_seed(seed)):
            assert relative_error(code_frames, code_frames.reference, example) < 8e-3, seed


def test_calls_that_take_long_are_timed_a_few_times_only(examples: Any) -> None:
    calls = []

    def slow(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        time.sleep(0.02)
        return x + 1

    slow_one = operation("slow", examples=lambda dtype, generator: [(torch.zeros(3, dtype=dtype),)])(slow)
    examples.slow = slow
    one = KernelComponent(
        name="k", target=f"{ME}:slow", summary="", operation="slow", device="cpu", dtypes=("float32",)
    )
    (found,) = compare(slow_one, one, seconds=0.01)
    assert found.good
    assert found.speeds is not None
    assert calls.count(torch.float64) == 1
    assert calls.count(torch.float32) == 1 + 2 * (1 + FEWEST_ROUNDS)  # the error, and the speeds of both


def test_what_an_operation_writes_is_compared_and_nothing_else_may_change() -> None:
    @operation("put", examples=lambda dtype, generator: [], writes=("target",))
    def put(x: torch.Tensor, target: torch.Tensor, row: int) -> torch.Tensor:
        target[row] = x
        return x + 1

    def elsewhere(x: torch.Tensor, target: torch.Tensor, row: int) -> torch.Tensor:
        return put.reference(x, target, row - 1)

    def nowhere(x: torch.Tensor, target: torch.Tensor, row: int) -> torch.Tensor:
        return x + 1

    def also(x: torch.Tensor, target: torch.Tensor, row: int) -> torch.Tensor:
        target[row - 1] *= 1.001
        return put.reference(x, target, row)

    def in_place(x: torch.Tensor, target: torch.Tensor, row: int) -> torch.Tensor:
        target[row] = x
        return x.add_(1)

    arguments = (torch.randn(8), torch.randn(100_000, 8), 3)
    before = [each.clone() for each in arguments[:2]]
    assert relative_error(put, put.reference, arguments) < 1e-7
    assert relative_error(put, elsewhere, arguments) > 0.5
    assert relative_error(put, nowhere, arguments) > 0.5
    assert relative_error(put, also, arguments) > 1e-4
    with pytest.raises(ContractViolation, match="it changes its argument 'x'"):
        relative_error(put, in_place, arguments)
    assert all(torch.equal(each, old) for each, old in zip(arguments, before, strict=False))


@pytest.mark.parametrize(("off", "error"), [(0, 0.0), (1, float("inf"))])
def test_whole_numbers_must_be_the_same(off: int, error: float) -> None:
    def kernel(logits: torch.Tensor, top_k: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = route_experts.reference(logits.double(), top_k, normalize)
        chosen[0, 0] += off
        return weights, chosen

    assert relative_error(route_experts, kernel, (torch.arange(600.0).expand(50, 600), 4, True)) == error


def test_an_operation_name_is_used_once() -> None:
    @operation("twice", examples=lambda dtype, generator: [])
    def twice(x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x + x

    assert twice.__doc__ == "Twice."
    assert float(twice(torch.ones(()))) == 2.0
