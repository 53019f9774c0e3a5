"""The thinker, the talker and its code predictor give the same results when their steps and frames are replayed, and a
GPU could record them. The recorder here calls the recorded function again (see tests/omni_torch/engine/test_graphs.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attrs import evolve
from eager_recorder import EagerRecorder
from ghost import GHOST, GhostRecorder, decode, ghost_gpu
from qwen_stages import create_talker, create_thinker
from released import RELEASED
from stage_answers import SAMPLING, answers, assert_same

from omni_core.scheduling.base import IncomingMessage
from omni_qwen3.code_predictor import CodePredictor
from omni_qwen3.config import parse_config
from omni_qwen3.talker_feedback import recordable_frame
from omni_qwen3.talker_network import Talker
from omni_qwen3.thinker_network import Thinker
from omni_testing.ours.checkpoints import tiny_checkpoint
from omni_testing.ours.qwen3 import TalkerConformance, ThinkerConformance
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.runners.graphs import CudaRecorder, Graphs, Named

RECORDED: dict[str, Any] = {"cuda_graphs": EagerRecorder}


def same_answers(
    make: Callable[..., Any], messages: list[list[IncomingMessage]], recorded: dict[str, Any], **options: Any
) -> EngineScheduler:
    """Return the answers with and without graphs, and the stage that had them."""
    expected = answers(make(**options), messages)
    stage: EngineScheduler = make(**recorded, **options)
    got = answers(stage, messages)
    assert got.keys() == expected.keys()
    for name, sent in got.items():
        assert [(each.type, each.target) for each in sent] == [(each.type, each.target) for each in expected[name]]
        for each, right in zip(sent, expected[name], strict=True):
            assert_same(each.data, right.data)
    assert stage.statistics()["graph_steps"] > 10
    return stage


@pytest.mark.parametrize("options", [{"kv_blocks": 64}, {"kv_blocks": 9, "block_size": 4, "chunk_size": 4}], ids=str)
def test_the_thinker_replayed(options: dict[str, Any], conformance_checkpoint: str) -> None:
    """With images' features, and with the hidden states that the talker reads; in a cache that is too small for all, too."""
    cases = ThinkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING)]
    stage = same_answers(partial(create_thinker, conformance_checkpoint), messages, RECORDED, **options)
    assert (stage.statistics()["preemptions"] > 0) == (options["kv_blocks"] == 9)


@pytest.mark.parametrize("options", [{"kv_blocks": 64}, {"kv_blocks": 13, "block_size": 4}], ids=str)
def test_the_talker_and_its_frames_replayed(options: dict[str, Any], conformance_checkpoint: str) -> None:
    cases = TalkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING)]
    recorded = {**RECORDED, "frame_graphs": EagerRecorder}
    stage = same_answers(partial(create_talker, conformance_checkpoint), messages, recorded, **options)
    recordings = stage._runner.feedback.graphs._recordings  # type: ignore[attr-defined]
    assert {drawn for drawn, _ in recordings} == {True, False}
    assert len({rows for _, rows in recordings}) > 1
    assert (stage.statistics()["preemptions"] > 0) == (options["kv_blocks"] == 13)


@pytest.fixture(scope="module")
def conformance_checkpoint() -> str:
    return tiny_checkpoint("qwen3")


def test_frames_that_cannot_be_recorded_are_computed_without_graphs(
    conformance_checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(EagerRecorder):
        def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
            raise RuntimeError("no graphs on this GPU")

    cases = TalkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING[:3])]
    expected = answers(create_talker(conformance_checkpoint, kv_blocks=64), messages)
    with caplog.at_level(logging.WARNING):
        recorded = create_talker(conformance_checkpoint, kv_blocks=64, cuda_graphs=Failing, frame_graphs=Failing)
        got = answers(recorded, messages)
    for name in expected:
        for each, right in zip(got[name], expected[name], strict=True):
            assert_same(each.data, right.data)
    assert [each.split("(")[1][:12] for each in caplog.messages] == ["RuntimeError"] * 2, (
        "the engine's, and the frames'"
    )


# --- what a GPU could record, at the released dimensions -------------------------------------------------------------
@pytest.mark.parametrize("axes", [1, 3])
def test_a_thinkers_step_does_not_synchronise_with_the_host(
    axes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ghost_gpu(monkeypatch)
    config = evolve(parse_config(RELEASED).thinker, layers=3)
    with torch.device(GHOST):
        model = Thinker(config).bfloat16().requires_grad_(False)
    output, graphs = decode(model, axes=axes, extra={"capture": 2})
    assert not graphs.failed, caplog.text
    assert output.captured[2].shape == output.hidden.shape == (3, config.hidden_size)


def test_a_talkers_step_and_frame_do_not_synchronise_with_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ghost_gpu(monkeypatch)
    config = parse_config(RELEASED).talker
    with torch.device(GHOST):
        model = Talker(evolve(config, text=evolve(config.text, layers=2))).bfloat16().requires_grad_(False)
    _, graphs = decode(model, axes=3)
    assert not graphs.failed, caplog.text
    hidden = torch.zeros(3, model.hidden_size, dtype=torch.bfloat16, device=GHOST)
    temperature = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    uniforms = torch.rand(3, config.code_groups - 1, dtype=torch.float64)
    for inputs in ([hidden, hidden], [hidden, hidden, temperature, uniforms]):
        graphs = Graphs(GHOST, GhostRecorder)
        frames = graphs.run(len(inputs), partial(recordable_frame, model.code_predictor), inputs)
        assert frames is not None, caplog.text
        assert frames["codes"].shape == (3, config.code_groups - 1)
        assert frames["feedback"].shape == hidden.shape
        assert model.code_predictor._state is None, "a graph's memory is its own"


@pytest.mark.parametrize("graphs", [False, EagerRecorder])
def test_a_residual_code_that_cannot_be_chosen_fails_its_request(graphs: Any, conformance_checkpoint: str) -> None:
    """A NaN must neither end a process, as a wrong index does on a GPU, nor be spoken as some code."""
    stage: Any = create_talker(conformance_checkpoint, kv_blocks=64, cuda_graphs=graphs, frame_graphs=graphs)
    with torch.no_grad():
        stage._runner.model.code_predictor.lm_head[1].weight.fill_(torch.nan)
    for message in TalkerConformance().messages("r", 0, {"temperature": 1.0, "seed": 3, "max_new_tokens": 5}):
        stage.inbox.put(message)
    with torch.inference_mode():
        while not (sent := stage.outbox.drain()):
            assert stage.loop.turn()
    assert sent[0].type == "error"
    assert "request r: frame 1 has no largest logit for one of its residual codes" in str(sent[0].data)


# --- on a GPU, where there is one ------------------------------------------------------------------------------------
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@torch.inference_mode()
def test_a_gpu_completes_the_same_frames_with_graphs() -> None:
    config = parse_config(RELEASED).talker
    torch.manual_seed(0)
    with torch.device("cuda"):
        predictor = CodePredictor(evolve(config.predictor, layers=2), config.code_groups).requires_grad_(False)
        for parameter in predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5 + (parameter.dim() == 1))
        inputs = torch.randn(6, 11, config.predictor.hidden_size)
    graphs = Graphs(torch.device("cuda"), CudaRecorder)
    for count, hidden in zip((11, 3, 11, 1, 3, 2), inputs, strict=True):
        rows = [hidden[:count], hidden[:count].flip(0)]
        frames = graphs.run("frame", partial(recordable_frame, predictor), rows)
        assert frames is not None
        codes, feedback = predictor(*rows, lambda logits, group: logits.argmax(-1))
        assert torch.equal(frames["codes"], codes)
        torch.testing.assert_close(frames["feedback"], feedback, rtol=1e-4, atol=1e-4)
