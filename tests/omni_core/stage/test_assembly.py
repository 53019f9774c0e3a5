"""A stage's scheduler from its spec: the arguments of a factory, the parts of a stage, and every error before weights are read."""

from __future__ import annotations

import queue
from typing import Any

import pytest
from attrs import define, field

from omni_core.errors import ConfigError
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.scheduling.simple import SimpleScheduler
from omni_core.stage.assembly import assemble, build_scheduler

CALLED: list[str] = []
CONTEXT = {"model_path": "folder", "device": "cuda:1", "stage_name": "talker", "tp_rank": 0, "tp_size": 1}


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


@define
class Part:
    """Records the arguments that a part was called with."""

    name: str
    given: dict[str, Any]

    def __attrs_post_init__(self) -> None:
        CALLED.append(self.name)


@define
class Scheduler(Part):
    inbox: MessageQueue[IncomingMessage] = field(factory=MessageQueue)
    outbox: MessageQueue[OutgoingMessage] = field(factory=MessageQueue)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def abort(self, request_id: str) -> None: ...


def strategy(gain: float = 1.0, shared: int = 0) -> Part:
    return Part("feedback", {"gain": gain})


def runner(model_path: str, device: str, dtype: str = "float32", shared: int = 0) -> Part:
    return Part("runner", {"model_path": model_path, "device": device, "dtype": dtype})


def fed_back(model_path: str, feedback: Part, device: str, dtype: str = "float32") -> Part:
    return Part("runner", {"feedback": feedback, "device": device, "dtype": dtype})


def ranked(model_path: str, tp_rank: int, tp_size: int) -> Part:
    return Part("runner", {"rank": tp_rank})


def scheduler(runner: Part, *, max_running: int = 32, tp_size: int = 1, **options: Any) -> Scheduler:
    return Scheduler("scheduler", {"runner": runner, "max_running": max_running, "tp_size": tp_size, **options})


def needy(runner: Part, blocks: int) -> Scheduler:
    return Scheduler("scheduler", {"runner": runner, "blocks": blocks})


def no_scheduler(runner: Part) -> Part:
    return Part("scheduler", {"runner": runner})


def drives_nothing(max_running: int = 1) -> Scheduler:
    return Scheduler("scheduler", {})


def factory(model_path: str, device: str, gain: float = 1.0) -> Any:
    return lambda payload: (model_path, device, gain)


def on_gpu(gpu_id: int | None) -> Any:
    CALLED.append(f"gpu {gpu_id}")
    return lambda payload: payload


def on_plain_queue(name: str, runner: Part | None = None) -> Scheduler:
    queues: dict[str, Any] = {name: queue.Queue()}
    return Scheduler("scheduler", {}, **queues)


HERE = "test_assembly"


def spec(model_runner: str = "runner", scheduler: str = "scheduler", **fields: Any) -> StageSpec:
    injected = {**CONTEXT, **fields.pop("injected", {})}
    feedback = fields.pop("feedback", None)
    return StageSpec(
        name="talker",
        model_runner=f"{HERE}:{model_runner}",
        scheduler=f"{HERE}:{scheduler}",
        feedback=None if feedback is None else f"{HERE}:{feedback}",
        factory_args=fields,
        injected=injected,
    )


@pytest.fixture(autouse=True)
def this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return one copy of this module, under the name that the specs use."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def test_scheduler_of_runner_of_feedback() -> None:
    made: Any = build_scheduler(
        spec("fed_back", feedback="strategy", gain=0.5, dtype="bfloat16", max_running=3, injected={"tp_size": 1})
    )
    assert CALLED == ["feedback", "runner", "scheduler"]
    assert (made.given["max_running"], made.given["tp_size"]) == (3, 1)
    assert {**made.given["runner"].given, "feedback": None} == {
        "feedback": None,
        "device": "cuda:1",
        "dtype": "bfloat16",
    }
    assert made.given["runner"].given["feedback"].given == {"gain": 0.5}


def test_a_value_of_the_context_can_be_replaced_for_all_parts() -> None:
    made: Any = build_scheduler(spec(model_path="elsewhere", device="cpu"))
    assert made.given["runner"].given == {"model_path": "elsewhere", "device": "cpu", "dtype": "float32"}


def test_parts_outside_a_pipeline() -> None:
    made: Any = assemble(f"{HERE}:runner", f"{HERE}:scheduler", model_path="here", device="cpu", max_running=2)
    assert made.given["max_running"] == 2
    assert made.given["runner"].given["model_path"] == "here"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"max_runing": 3}, r"factory_args\.max_runing: no part has such a parameter .*did you mean 'max_running'"),
        ({"dtyp": "float16"}, r"factory_args\.dtyp: .*did you mean 'dtype'"),
        ({"colour": 1}, r"factory_args\.colour: .*there are: dtype, shared, max_running$"),
        ({"options": {}}, r"factory_args\.options: no part has such a parameter"),
        ({"stage_name": "x"}, r"factory_args\.stage_name: no part has such a parameter"),
        ({"feedback": "strategy"}, r"stages\[talker\]\.feedback: 'test_assembly:runner' takes no `feedback`"),
        ({"model_runner": "fed_back"}, r"stages\[talker\]\.feedback: required, because 'test_assembly:fed_back'"),
        ({"scheduler": "needy"}, r"factory_args\.blocks: 'test_assembly:needy' needs it"),
        ({"scheduler": "drives_nothing"}, r"stages\[talker\]\.scheduler: .*takes no `runner`"),
        ({"model_runner": "CONTEXT"}, r"stages\[talker\]\.model_runner: 'test_assembly:CONTEXT' is not callable"),
        ({"model_runner": "absent"}, r"module 'test_assembly' has no attribute 'absent'"),
        ({"injected": {"tp_size": 2}}, r"stages\[talker\]\.tp_size: 'test_assembly:runner' takes no `tp_rank`"),
    ],
    ids=str,
)
def test_arguments_are_checked_before_any_part_is_called(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_scheduler(spec(**made))
    assert CALLED == []


def test_a_key_that_two_parts_take_is_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(feedback: Part, shared: int = 0) -> Part:
        return Part("runner", {})

    monkeypatch.setitem(globals(), "both", both)
    with pytest.raises(
        ConfigError, match=r"factory_args\.shared: ambiguous: feedback .*strategy' and model_runner .*both'"
    ):
        build_scheduler(spec("both", feedback="strategy", shared=1))
    assert CALLED == []


def test_a_rank_gets_its_number() -> None:
    made: Any = build_scheduler(spec("ranked", injected={"tp_rank": 1, "tp_size": 2}))
    assert made.given["runner"].given == {"rank": 1}
    assert made.given["tp_size"] == 2


def test_an_object_that_is_not_a_scheduler_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"stages\[talker\]\.scheduler: .* returned a Part, no scheduler"):
        build_scheduler(spec(scheduler="no_scheduler"))


@pytest.mark.parametrize(("gpu", "given", "gets"), [(3, {}, 3), (None, {}, None), (3, {"gpu_id": 1}, 1)])
def test_a_factory_gets_the_number_of_its_gpu(gpu: int | None, given: dict[str, Any], gets: int | None) -> None:
    build_scheduler(StageSpec(name="s", factory=f"{HERE}:on_gpu", gpu=gpu, injected=CONTEXT, factory_args=given))
    assert [f"gpu {gets}"] == CALLED


@pytest.mark.parametrize("name", ["inbox", "outbox"])
def test_a_scheduler_on_a_plain_queue_is_an_error(name: str) -> None:
    message = rf"on_plain_queue' returned a scheduler whose `{name}` is a Queue; make it a MessageQueue"
    with pytest.raises(ConfigError, match=rf"stages\[s\]\.factory: .*{message}"):
        build_scheduler(StageSpec(name="s", factory=f"{HERE}:on_plain_queue", factory_args={"name": name}))
    with pytest.raises(ConfigError, match=rf"stages\[talker\]\.scheduler: .*{message}"):
        build_scheduler(spec(scheduler="on_plain_queue", name=name))


def test_a_factory_gets_its_device() -> None:
    made = build_scheduler(StageSpec(name="s", factory=f"{HERE}:factory", injected=CONTEXT))
    assert isinstance(made, SimpleScheduler)
    with pytest.raises(ConfigError, match=r"stages\[s\]\.factory_args\.gian: .*did you mean 'gain'"):
        build_scheduler(StageSpec(name="s", factory=f"{HERE}:factory", injected=CONTEXT, factory_args={"gian": 2.0}))
