"""The thinker, the talker and the code predictor by omni-kernels-cpu, beside the same stages without kernels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_recorder import EagerRecorder

pytest.importorskip("omni_kernels_cpu")
from qwen_stages import create_talker, create_thinker
from stage_answers import SAMPLING, answers, assert_same

from omni_kernels_cpu.library import problem
from omni_qwen3.config import read_config
from omni_qwen3.talker_feedback import chooser
from omni_qwen3.talker_network import load_talker
from omni_qwen3.thinker_network import load_thinker
from omni_testing.ours.checkpoints import tiny_checkpoint
from omni_testing.ours.qwen3 import TalkerConformance, ThinkerConformance
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.checkpoints import prepared
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.operations.code_frames import CodeChoice, code_frames
from omni_torch.operations.decoder_stack import decode_layers
from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear
from omni_torch.operations.installed_kernels import install
from omni_torch.quantization import packed_linear
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears

pytestmark = pytest.mark.skipif(problem() is not None, reason=str(problem()))


@pytest.fixture(scope="module")
def conformance_checkpoint() -> str:
    return tiny_checkpoint("qwen3")


def with_and_without(
    make: Any, messages: list[Any], kernels: dict[str, Any], **options: Any
) -> tuple[EngineScheduler, dict[str, Any], dict[str, Any]]:
    """Return the stage with kernels, its answers, and those of one without."""
    install({})
    plain = make(**options)
    expected = answers(plain, messages)
    assert plain.statistics()["kernel_steps"] == 0
    install(kernels)
    stage: EngineScheduler = make(**options)
    return stage, answers(stage, messages), expected


def assert_same_answers(made: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made.keys() == expected.keys()
    for name, sent in made.items():
        assert [(each.type, each.target) for each in sent] == [(each.type, each.target) for each in expected[name]]
        for each, right in zip(sent, expected[name], strict=True):
            assert_same(each.data, right.data)


@pytest.mark.parametrize("options", [{"kv_blocks": 64}, {"kv_blocks": 9, "block_size": 4, "chunk_size": 4}], ids=str)
def test_the_thinker_in_float32(options: dict[str, Any], conformance_checkpoint: str, kernels: dict[str, Any]) -> None:
    """With images' features, and with the hidden states that the talker reads; in a cache that is too small for all, too."""
    cases = ThinkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING)]
    make = partial(create_thinker, conformance_checkpoint)
    stage, made, expected = with_and_without(make, messages, kernels, **options)
    assert_same_answers(made, expected)
    state = stage.statistics()
    assert 5 < state["kernel_steps"] < state["steps"], "prompts with features of images are computed layer by layer"
    assert (state["preemptions"] > 0) == (options["kv_blocks"] == 9)


def test_the_talker_and_its_code_predictor_in_float32(conformance_checkpoint: str, kernels: dict[str, Any]) -> None:
    cases = TalkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING[:3])]
    stage, made, expected = with_and_without(
        partial(create_talker, conformance_checkpoint), messages, kernels, kv_blocks=64
    )
    assert_same_answers(made, expected)
    assert stage.statistics()["kernel_steps"] > 5


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_replayed_steps_are_one_operation_too(
    stage: str, conformance_checkpoint: str, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of a graph are the operation's pages and lengths; rows of padding write what the row that they repeat writes."""
    rows: list[int] = []

    class Counted:
        replaced = staticmethod(decode_layers.replaced)

        def __call__(self, x: torch.Tensor, *given: Any) -> tuple[torch.Tensor, ...]:
            rows.append(len(x))
            return decode_layers(x, *given)

    monkeypatch.setattr("omni_torch.operations.decoder_step.decode_layers", Counted())
    cases: Any = ThinkerConformance() if stage == "thinker" else TalkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING[:3])]
    create = create_thinker if stage == "thinker" else create_talker
    make = partial(create, conformance_checkpoint, kv_blocks=64, cuda_graphs=EagerRecorder)
    made_by, made, expected = with_and_without(make, messages, kernels)
    assert_same_answers(made, expected)
    assert made_by.statistics()["graph_steps"] > 5
    assert 4 in rows, "three rows and one of padding"


def keeps(stage: EngineScheduler) -> bool:
    model: Any = stage._runner.model
    return any(isinstance(each, BFloat16Linear) for each in model.modules())


@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_float32_from_weights_in_bfloat16(
    stage: str, tmp_path: Path, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are those of the same weights widened, and the bits do not depend on which of the two is kept."""
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    folder = str(write_tiny_checkpoint(tmp_path / "a", dtype="bfloat16"))
    cases: Any = ThinkerConformance() if stage == "thinker" else TalkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING[:3])]
    make = partial(create_thinker if stage == "thinker" else create_talker, folder, kv_blocks=64)
    kept, made, expected = with_and_without(make, messages, kernels)
    assert_same_answers(made, expected)
    assert kept.statistics()["kernel_steps"] > 5
    assert keeps(kept)
    monkeypatch.setattr(prepared, "keeps_bfloat16", lambda *given: False)
    wide = make()
    assert not keeps(wide)
    for name, sent in answers(wide, messages).items():
        for each, right in zip(sent, made[name], strict=True):
            if isinstance(each.data, torch.Tensor):
                assert torch.equal(each.data, right.data)
            assert_same(each.data, right.data)


def test_embeddings_in_bfloat16_give_the_rows_and_frames_of_float32(
    tmp_path: Path, kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the thinker, the talker and each group of the code predictor, whose frames the library computes from them."""
    install(kernels)
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    folder = str(write_tiny_checkpoint(tmp_path / "a", dtype="bfloat16"))
    config = read_config(folder)
    kept = load_thinker(folder, config), load_talker(folder, config)
    monkeypatch.setattr(prepared, "keeps_bfloat16", lambda *given: False)
    wide = load_thinker(folder, config), load_talker(folder, config)
    count = 0
    for ours, theirs in zip(kept, wide, strict=True):
        widened = dict(theirs.named_modules())
        for name, layer in ours.named_modules():
            assert type(layer) is not torch.nn.Embedding
            if isinstance(layer, BFloat16Embedding):
                count += 1
                ids = torch.arange(len(layer.matrix.weight))
                assert torch.equal(layer(ids), widened[name].weight), name
                assert layer(ids).dtype == torch.float32
    assert count == 1 + 1 + config.talker.code_groups - 1
    monkeypatch.setattr(code_frames, "reference", lambda *given: pytest.fail("not by the library"))
    assert code_frames.replaced("cpu", torch.float32)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, config.talker.predictor.hidden_size, generator=generator)
    uniforms = torch.rand(3, config.talker.code_groups - 1, generator=generator, dtype=torch.float64)
    for choose in (chooser(None, None), chooser(torch.ones(3, dtype=torch.float64), uniforms)):
        made = []
        for _, talker in (kept, wide):
            pack_linears(talker, pack_decoder)
            with torch.inference_mode():
                made.append(talker.code_predictor(hidden, hidden.flip(0), choose))
        assert torch.equal(made[0][0], made[1][0])
        assert torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8_weight_only"}], ids=str)
def test_narrow_weights_are_computed_alone_as_in_a_batch(
    options: dict[str, Any], conformance_checkpoint: str, kernels: dict[str, Any]
) -> None:
    install(kernels)
    cases = ThinkerConformance()
    messages = [cases.messages(f"r{number}", number, sampling) for number, sampling in enumerate(SAMPLING[:3])]
    together = create_thinker(conformance_checkpoint, kv_blocks=64, **options)
    batch = answers(together, messages)
    assert together.statistics()["kernel_steps"] > 5
    for number, sampling in enumerate(SAMPLING[:3]):
        stage = create_thinker(conformance_checkpoint, kv_blocks=64, **options)
        alone = answers(stage, [cases.messages(f"r{number}", number, sampling)])[f"r{number}"]
        assert alone[-1].data["token_ids"] == batch[f"r{number}"][-1].data["token_ids"]


def test_the_option_that_turns_them_off(conformance_checkpoint: str, kernels: dict[str, Any]) -> None:
    install(kernels)
    cases = ThinkerConformance()
    messages = [cases.messages("r0", 0, SAMPLING[0])]
    states = []
    for wanted in (True, False):
        stage = create_thinker(conformance_checkpoint, kv_blocks=64, step_kernels=wanted)
        answers(stage, messages)
        states.append(stage.statistics()["kernel_steps"])
    assert states[0] > 5
    assert states[1] == 0


def test_frames_by_calls_of_steps_and_by_one_call(
    tiny: dict[str, Path], kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of the code predictor by PyTorch, by one call, by kernels of steps where its codes are chosen otherwise, and by PyTorch
    because there are too many.
    """
    config = read_config(tiny["a"])
    hidden = torch.randn(3, config.talker.predictor.hidden_size, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(
        3, config.talker.code_groups - 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    choices: list[Any] = [
        chooser(None, None),
        chooser(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), uniforms),
        lambda logits, group: logits.argmax(-1),
    ]
    made = []
    for some, most in (({}, 32), (kernels, 32), (kernels, 2)):
        install(some)
        for module in ("omni_torch.operations.decoder_step", "omni_qwen3.code_predictor"):
            monkeypatch.setattr(f"{module}.MOST_ROWS", most)
        predictor = load_talker(str(tiny["a"]), config).code_predictor
        pack_linears(predictor, pack_decoder)
        codes = []
        for choose in choices:
            predictor._state = None
            with torch.inference_mode():
                codes.append(predictor(hidden, hidden.flip(0), choose)[0])
            one_call = some == kernels and most == 32 and isinstance(choose, CodeChoice)
            assert (predictor._state is None) == one_call
            assert one_call or (predictor._state.tables is not None) == (some == kernels and most == 32)
        made.append(codes)
    assert not torch.equal(made[0][0], made[0][1])
    for codes in made[1:]:
        assert all(torch.equal(each, right) for each, right in zip(codes, made[0], strict=True))
