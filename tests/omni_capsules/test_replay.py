"""One stage is run again from a record: with equal outputs, the same errors, and the first difference where there is one."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import numpy as np
import pytest
from capsule_parts import MakeCapsule, payload

from omni_capsules.capsule import Capsule, CapsuleError, StageRecord, record_of
from omni_capsules.rebuild import Rebuilt, chosen, rebuild
from omni_capsules.records import Records
from omni_capsules.replay import Comparison, Outcome, compare, replay
from omni_capsules.stage import RecordedStage
from omni_core.protocol.specs import StageSpec
from omni_core.stage.assembly import build_scheduler


class _Nowhere:
    """The ways out of a process, which lead nowhere."""

    def __init__(self) -> None:
        from omni_capsules.replay import _Outbound

        self.__dict__ = _Outbound().__dict__

    def __getattr__(self, name: str) -> Any:
        from omni_capsules.replay import _Outbound

        return getattr(_Outbound, name).__get__(self)


def recorded(records: Records, spec: StageSpec, inputs: list[tuple[Any, ...]], *, ends: bool = True) -> StageRecord:
    """Run a stage as a process does, with records, until the request has ended in it; return its record."""

    async def run() -> None:
        stage = RecordedStage(spec, build_scheduler(spec), _Nowhere(), lambda: None, records=records)  # type: ignore[arg-type]
        stage.start()
        for kind, *values in inputs:
            getattr(stage, f"receive_{kind}")(*values)
        while ends and len(stage._requests):
            await asyncio.sleep(0.001)
        if not ends:
            stage.abort("r")
        stage.stop()
        stage.join(5.0)

    asyncio.run(run())
    [record] = [record_of(each) for each in records.of("r")]
    assert record is not None
    return record


def again(record: StageRecord, spec: StageSpec) -> tuple[Outcome, Comparison]:
    rebuilt = Rebuilt(record, spec, {}, {})
    outcome = replay(rebuilt, build_scheduler(spec))
    return outcome, compare(rebuilt, outcome)


ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def test_a_function_is_run_again_with_equal_bytes_and_a_change_is_located(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = StageSpec(name="a", factory="computes:scaled", terminal=True)
    record = recorded(records, spec, [("payload", payload({"rows": ROWS, "name": "x"}), "before")])
    outcome, comparison = again(record, spec)
    assert (outcome.ended, comparison) == ("completed", Comparison(1, 1, 1))
    monkeypatch.setattr("computes.SCALE", np.float32(2.0000002))
    outcome, comparison = again(record, spec)
    assert comparison.equal == 0
    assert "output 0 (result): data['rows']: " in comparison.difference
    assert "of 12 numbers differ, by at most " in comparison.difference


def test_streamed_inputs_come_in_their_order_and_every_chunk_is_compared(records: Records) -> None:
    spec = StageSpec(
        name="a", factory="computes:Sum", factory_args={"source": "s"}, stream_from=["s"], stream_to=["t"], next=["t"]
    )
    chunks = [("chunk", "r", "s", (ROWS[n % 3, :3] * 1.1, None, None)) for n in range(20)]
    inputs = [*chunks[:9], ("payload", payload({}), "s"), *chunks[9:], ("done", "r", "s")]
    record = recorded(records, spec, inputs)
    assert [event.kind for event in record.events].count("chunk") == 20
    _, comparison = again(record, spec)
    assert comparison == Comparison(21, 21, 21)


def test_a_generator_is_run_again(records: Records) -> None:
    spec = StageSpec(name="a", factory="computes:letters", terminal=True)
    _, comparison = again(recorded(records, spec, [("payload", payload("word"), None)]), spec)
    assert comparison == Comparison(5, 5, 5)


def test_an_exception_is_reproduced_with_its_traceback(records: Records) -> None:
    spec = StageSpec(name="a", factory="computes:divides", terminal=True)
    record = recorded(records, spec, [("payload", payload({"n": 0}), None)])
    assert record.failure is not None
    outcome, comparison = again(record, spec)
    assert (outcome.ended, comparison.difference) == ("failed", "")
    assert isinstance(outcome.exception, ZeroDivisionError)
    assert outcome.exception.__traceback__ is not None
    assert outcome.error is not None
    assert "computes.py" in outcome.error["traceback"]


def test_an_exception_of_a_function_of_the_pipeline_is_reproduced(records: Records) -> None:
    spec = StageSpec(name="a", factory="computes:divides", next=["b", "c"], route_fn="computes:wrong_route")
    record = recorded(records, spec, [("payload", payload({"n": 1}), None)])
    outcome, comparison = again(record, spec)
    assert outcome.error is not None
    assert (outcome.error["error_type"], comparison.difference) == ("LookupError", "")


def test_one_that_does_not_fail_any_more_is_different(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = StageSpec(name="a", factory="computes:divides", terminal=True)
    record = recorded(records, spec, [("payload", payload({"n": 0}), None)])
    _, comparison = again(record, attrs.evolve(spec, factory="computes:letters"))
    assert "division by zero then, stream now" in comparison.difference
    _, comparison = again(record, attrs.evolve(spec, factory="computes:parts"))
    assert comparison.difference.startswith("output 0 (result): ZeroDivisionError: ")


def test_parts_of_a_request_are_compared_each(records: Records) -> None:
    spec = StageSpec(name="a", factory="computes:divides", expand_fn="computes:parts", terminal=True)
    record = recorded(records, spec, [("payload", payload({"n": 4}), None)])
    _, comparison = again(record, spec)
    assert comparison == Comparison(2, 2, 2)


def test_a_request_that_was_aborted_is_over_when_it_has_made_what_it_had(records: Records) -> None:
    spec = StageSpec(
        name="a", factory="computes:Sum", factory_args={"source": "s"}, stream_from=["s"], stream_to=["t"], next=["t"]
    )
    record = recorded(records, spec, [("chunk", "r", "s", (ROWS[0, :3], None, None))], ends=False)
    assert record.first("aborted") is not None
    outcome, comparison = again(record, spec)
    assert (outcome.ended, comparison.difference) == ("", "")


# --- from a capsule to a stage ---------------------------------------------------------------------------------------------
SPEC = StageSpec(name="a", factory="computes:scaled", terminal=True)


def one(records: Records) -> None:
    records.add("a", "r", "payload", payload({"rows": ROWS, "name": "x"}))


def built(capsule: Capsule, stage: str | None = None, **options: Any) -> Rebuilt:
    return rebuild(capsule, chosen(capsule, stage), **{"model": None, "device": None, "trust": True, **options})


def test_the_stage_that_failed_is_run_again_unless_another_is_named(make_capsule: MakeCapsule) -> None:
    def two(records: Records) -> None:
        one(records)
        records.add("b", "r", "payload", payload(1))

    capsule = make_capsule(SPEC, two, error={"stage": "b", "error_type": "E", "message": ""})
    assert chosen(capsule, None).stage == "b"
    assert chosen(capsule, "a").stage == "a"
    with pytest.raises(CapsuleError, match=r"--stage c: the capsule holds no such stage.*it holds.*a"):
        chosen(capsule, "c")
    with pytest.raises(CapsuleError, match=r"the capsule holds no stage \(p: did not answer\)"):
        chosen(attrs.evolve(capsule, stages=[], missing={"p": "did not answer"}), None)


def test_what_is_needed_and_not_here_is_named(make_capsule: MakeCapsule) -> None:
    capsule = make_capsule(attrs.evolve(SPEC, injected={"model_path": "/not/here", "device": "cuda:1"}), one)
    with pytest.raises(CapsuleError, match=r"its checkpoint /not/here is not here; say where it is: --model FOLDER"):
        built(capsule)
    assert built(capsule, model="/", device="cpu").spec.injected == {"model_path": "/", "device": "cpu"}
    process = capsule.processes["p"]
    for changes, message in [
        ({"ranks": 2}, "has 2 ranks"),
        ({"stages": []}, "does not say how stage 'a' is built"),
        ({"stages": [{"name": "a", "newer": 1}]}, "built with 'newer', which this version of omni-core does not know"),
    ]:
        with pytest.raises(CapsuleError, match=message):
            built(attrs.evolve(capsule, processes={"p": {**process, **changes}}), model="/")
    with pytest.raises(CapsuleError, match="does not say how its process 'p' was launched"):
        built(attrs.evolve(capsule, processes={}))


def test_without_its_inputs_no_stage_is_run(make_capsule: MakeCapsule) -> None:
    capsule = make_capsule(SPEC, one)
    [record] = capsule.stages
    with pytest.raises(CapsuleError, match=r"its inputs were not recorded; set capsules\.inputs=true"):
        built(attrs.evolve(capsule, stages=[attrs.evolve(record, inputs=False)]))
    left_out = [event.without_data() for event in record.events]
    with pytest.raises(CapsuleError, match="an input was left out: no room in the capsule"):
        built(attrs.evolve(capsule, stages=[attrs.evolve(record, events=left_out)]))
