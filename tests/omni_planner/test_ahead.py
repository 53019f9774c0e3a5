"""Trials that other processes begin ahead change no plan, and their processes end with the search, however it ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from multiprocessing import active_children, get_context, reduction
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
import pytest
from attrs import define, evolve, field

sys.path.insert(0, str(Path(__file__).parent))

from test_search import GPU, line, profile

from omni_planner import ahead
from omni_planner.ahead import Ahead, Attempt
from omni_planner.devices import Fleet
from omni_planner.fleet import plan_fleet
from omni_planner.objectives import Objectives
from omni_planner.profile import Hardware, PipelineProfile
from omni_planner.search import Search
from omni_planner.trials import Load, Trial
from omni_torch.placement.work import PassWork

LIMITS = Objectives.parse("done=0.11")
LOAD = Load({"text": 1.0}, 50, rate=20.0)
MANY = Load({"text": 1.0}, 50, in_flight=400, pause=0.9)
MEMORY = (GPU.memory,)


def attempt(rate: float) -> Attempt:
    return Attempt(line(), {}, Load({"text": 1.0}, 50, rate=rate), 1, MEMORY)


@define
class Noted:
    """Attempts that searches have asked for since the last look, and those of them that had been begun."""

    asked: list[Attempt] = field(factory=list)
    begun: list[Attempt] = field(factory=list)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Start processes for short trials too."""
    monkeypatch.setattr(ahead, "WORTH", 0.0)
    noted, trial = Noted(), Ahead.trial

    def note(self: Ahead, wanted: Attempt) -> Trial | str:
        noted.asked.append(wanted)
        noted.begun.extend(each for each, _ in self._begun if each == wanted)
        return trial(self, wanted)

    monkeypatch.setattr(Ahead, "trial", note)
    return noted


@pytest.fixture
def children() -> Iterator[set[int | None]]:
    """The processes of before; others than these have ended when a test has."""
    before = {each.pid for each in active_children()}
    yield before
    end = time.monotonic() + 10.0
    while {each.pid for each in active_children()} - before:
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.02)


def cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(Hardware, "here", classmethod(lambda cls: cls("test", number)))


def test_a_fleet_is_the_same_with_any_number_of_processes(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = [], []
    for number in (1, 6):
        cores(monkeypatch, number)
        assert not soon.begun
        soon.asked.clear()
        found.append(plan_fleet(line(), profile(), MANY, LIMITS, Fleet(50, 4, GPU)))
        asked.append(list(soon.asked))
    assert found[0] == found[1]
    assert asked[0] == asked[1]
    assert len(soon.begun) > 2, "a smaller load, a larger one or the next size of cells is what is tried next"
    assert soon.begun[-1] == asked[1][-1], "the plan is simulated while the best cell is, for longer"
    assert found[0].degraded is found[0].cell.trial
    assert asked[1][-2].load.total > asked[1][-1].load.total
    assert asked[1][-2].load.in_flight == round(400 * found[0].cell.part)


def test_a_search_is_the_same_with_any_number_of_processes(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = [], []
    for number in (1, 3):
        cores(monkeypatch, number)
        assert not soon.begun
        soon.asked.clear()
        search = Search(line(), profile(), LOAD, LIMITS, budget=12)
        found.append((search.on_gpus(Fleet(1, 2, GPU)), search.trials, search.refusals))
        asked.append(list(soon.asked))
    assert found[0] == found[1]
    assert asked[0] == asked[1]
    assert soon.begun


def test_what_a_search_begins_is_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, asked, trial = list[Attempt](), list[Attempt](), Ahead.trial

    def note(self: Ahead, wanted: Attempt) -> Trial | str:
        asked.append(wanted)
        return trial(self, wanted)

    monkeypatch.setattr(Ahead, "expect", lambda self, probable: expected.extend(probable))
    monkeypatch.setattr(Ahead, "trial", note)
    cores(monkeypatch, 1)
    search = Search(line(), profile(), LOAD, Objectives.parse("done=0.03"), budget=40)
    search.on_gpus(Fleet(1, 4, GPU))
    assert len(expected) >= 5
    assert all(each in asked for each in expected)


def test_a_fleet_expects_what_it_asks_for_next_and_the_next_size_of_cells_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, before, trial = list[Attempt](), list[tuple[Attempt, list[Attempt]]](), Ahead.trial

    def expect(self: Ahead, probable: Iterable[Attempt], unlikely: Iterable[Attempt] = (), waiting: int = 0) -> None:
        expected[:] = [*probable, *unlikely]

    def note(self: Ahead, wanted: Attempt) -> Trial | str:
        before.append((wanted, list(expected)))
        expected.clear()
        return trial(self, wanted)

    monkeypatch.setattr(Ahead, "expect", expect)
    monkeypatch.setattr(Ahead, "trial", note)
    plan_fleet(line(), profile(), MANY, LIMITS, Fleet(50, 4, GPU))
    following = [(probable, after, after.cost > wanted.cost) for (wanted, probable), (after, _) in pairwise(before)]
    assert len(following) == 6
    assert sum(after in probable for probable, after, _ in following) == 4, (
        "not the first after nothing, nor the longer one"
    )
    assert [probable[0] == after for probable, after, is_larger in following if is_larger] == [True, True]


def test_what_is_likeliest_is_simulated_here_while_another_process_simulates_what_is_asked_for(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[float]()

    def note(self: Attempt, profile: PipelineProfile, objectives: Objectives) -> Trial | str:
        made.append(self.load.rate or 0.0)
        return simulated(self, profile, objectives)

    simulated = Attempt.made
    monkeypatch.setattr(Attempt, "made", note)
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect(attempt(each) for each in (1.0, 2.0, 3.0))  # the other process takes seconds to start
        first = trials.trial(attempt(1.0))
        assert made == [2.0]
        assert trials.trial(attempt(2.0)) == simulated(attempt(2.0), profile(), LIMITS)
        assert made == [2.0]
    assert first == simulated(attempt(1.0), profile(), LIMITS)


def test_an_error_of_what_is_only_likely_is_not_raised(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(self: Attempt, profile: PipelineProfile, objectives: Objectives) -> Trial | str:
        raise RuntimeError("of an author's cost")

    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect(attempt(each) for each in (1.0, 2.0))
        with monkeypatch.context() as patched:
            patched.setattr(Attempt, "made", made)
            assert isinstance(trials.trial(attempt(1.0)), Trial)
            with pytest.raises(RuntimeError, match="an author's cost"):
                trials.trial(attempt(2.0))


def test_processes_are_started_only_where_trials_take_longer_than_that(
    children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "WORTH", 100.0)  # the machine may be busy
    with Ahead(profile(), LIMITS, processes=3) as trials:
        trials.trial(attempt(1.0))
        trials.expect([attempt(2.0)])
        assert {each.pid for each in active_children()} == children


def test_a_process_has_started_by_the_end_of_the_first_trial_that_will_take_long(
    children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = mean(sum(visit.outputs for visit in sample.values()) for sample in profile().kinds["text"])
    monkeypatch.setattr(ahead, "WORTH", 149.5 * tokens * ahead.TOKEN)
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.trial(Attempt(line(), {}, Load({"text": 3.0}, 49, rate=1.0, around=50), 1, MEMORY))
        assert {each.pid for each in active_children()} == children
        trials.trial(Attempt(line(), {}, Load({"text": 3.0}, 50, rate=1.0, around=50), 1, MEMORY))
        (child,) = {each.pid for each in active_children()} - children
        end, libraries = time.monotonic() + 60.0, Path(f"/proc/{child}/maps")
        while "libtorch" not in libraries.read_text():  # its imports do not wait for a trial
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not trials._begun


def test_a_process_is_started_without_what_fills_a_pipe(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting one would wait until it has read that, for as long as its imports take."""
    sizes, dump = list[int](), reduction.dump

    def noted(thing: Any, file: Any, *arguments: Any) -> None:
        dump(thing, file, *arguments)
        sizes.append(file.tell())

    monkeypatch.setattr(reduction, "dump", noted)
    large = profile()
    large.kinds["text"] = [
        {**each, "speak": evolve(each["speak"])} for each in large.kinds["text"] for _ in range(3000)
    ]
    with Ahead(large, LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0)])
        assert trials._sent().stat().st_size > 65536
        assert isinstance(trials.trial(attempt(1.0)), Trial)
        sizes += [len(pickle.dumps(each)) for each in (trials._sent(), attempt(1.0))]  # what goes through the queue
        sent = trials._sent()
    assert len(sizes) > 2
    assert sum(sizes) < 65536
    assert not sent.exists()


def test_what_is_unlikely_is_not_simulated_here(
    soon: Noted, children: set[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Attempt]()
    monkeypatch.setattr(Attempt, "made", lambda self, *given: made.append(self))
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0)], [attempt(2.0)])
        assert isinstance(trials.trial(attempt(1.0)), Trial)
        assert not made


def test_one_more_than_there_are_processes_may_wait(soon: Noted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ahead, "_submit", lambda self, *given: Future())
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0), attempt(2.0)], waiting=1)
        assert [each.load.rate for each, _ in trials._begun] == [1.0], "it may wait, but need not"
        assert (trials.has_begun(attempt(1.0)), trials.has_begun(attempt(2.0))) == (True, False)
        trials.expect([attempt(3.0), attempt(4.0)], waiting=2)
        assert [each.load.rate for each, _ in trials._begun] == [1.0, 3.0]
        assert trials._next == attempt(4.0)


def test_no_more_are_begun_than_there_are_processes_without_work(soon: Noted, children: set[int | None]) -> None:
    with Ahead(profile(), LIMITS, processes=3) as trials:
        trials.expect(attempt(each) for each in (1.0, 1.0, 2.0, 3.0))
        assert [each.load.rate for each, _ in trials._begun] == [1.0, 2.0]


def test_a_killed_process_costs_time_only(soon: Noted, children: set[int | None]) -> None:
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0)])
        (child,) = (each for each in active_children() if each.pid not in children)
        child.kill()
        assert trials.trial(attempt(1.0)) == attempt(1.0).made(profile(), LIMITS)
        trials.expect([attempt(2.0)])
        assert trials.trial(attempt(2.0)) == attempt(2.0).made(profile(), LIMITS)
    assert soon.begun == [attempt(1.0)]


def test_a_profile_that_cannot_be_sent_is_simulated_here(soon: Noted, children: set[int | None]) -> None:
    class Local(PassWork):
        pass

    kept = profile()
    kept.works = evolve(kept.works, stages={"encode": Local(1000, 1e9)})
    with Ahead(kept, LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0)])
        assert isinstance(trials.trial(attempt(1.0)), Trial)
    assert not soon.begun


def test_only_the_processes_of_a_search_end_with_it(soon: Noted) -> None:
    other = get_context("spawn").Process(target=time.sleep, args=(60,))
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([attempt(1.0)])
        other.start()
    try:
        time.sleep(0.2)
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


def test_an_attempt_that_cannot_be_sent_is_simulated_here(soon: Noted, children: set[int | None]) -> None:
    kept = evolve(attempt(1.0), settings={"speak.factory_args.x": lambda: 1})
    with Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([kept])
        assert isinstance(trials.trial(kept), Trial)
    assert soon.begun == [kept]


def test_a_search_that_is_interrupted_leaves_no_process(soon: Noted, children: set[int | None]) -> None:
    """A trial that takes for ever, nearly."""
    with pytest.raises(KeyboardInterrupt), Ahead(profile(), LIMITS, processes=2) as trials:
        trials.expect([Attempt(line(), {}, Load({"text": 1.0}, 10_000_000, rate=1.0), 1, MEMORY)])
        raise KeyboardInterrupt


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_processes_end_with_one_that_is_killed_while_they_start_or_later(seconds: float, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        f"""
import sys, time
from multiprocessing import active_children
sys.path.insert(0, {str(Path(__file__).parent)!r})
if __name__ == "__main__":
    from test_search import line, profile
    from test_ahead import LIMITS, MEMORY
    from omni_planner import ahead
    from omni_planner.trials import Load
    ahead.WORTH = 0.0
    trials = ahead.Ahead(profile(), LIMITS, processes=2)
    trials.expect([ahead.Attempt(line(), {{}}, Load({{"text": 1.0}}, 10_000_000, rate=1.0), 1, MEMORY)])
    print(*(each.pid for each in active_children()), flush=True)
    time.sleep(100)
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (child,) = map(int, parent.stdout.readline().split())
        begun = psutil.Process(child).create_time()
        time.sleep(seconds)  # after five it has begun, mostly, and the kernel tells it of the end of its parent
        os.kill(parent.pid, signal.SIGKILL)
    end = time.monotonic() + 20.0
    with suppress(psutil.NoSuchProcess):
        while (left := psutil.Process(child)).create_time() == begun and left.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end:
                left.kill()
                pytest.fail("a process was left")
            time.sleep(0.05)
