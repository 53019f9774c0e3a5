"""A suite that lets a wrong implementation pass is worthless: each mistake must be caught, by the test that is meant to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import few

RELAYS = {
    "LosesTheSecondPut": "test_two_puts_in_flight_are_two",
    "LeaksOnAbort": "test_cleanup_frees_what_was_not_read",
    "WakesUpLate": "test_a_full_pool_waits_and_goes_on",
    "ForgetsEarlyReleases": "test_a_receiver_may_finish_before_the_sender_waits",
    "CompletesAtOnce": "test_a_put_that_nobody_reads_does_not_complete",
    "RefusesWhenFull": "test_a_full_pool_waits_and_goes_on",
    "WaitsForEver": "test_what_never_fits_is_refused_at_once",
    "SendsGarbage": "test_bytes_arrive_exactly",
    "ReadsLate": "test_the_source_may_change_after_the_put",
    "LeavesAThread": "test_closing_twice_is_closing_and_leaves_nothing",
    "ZeroesTheTail": "test_tensors_of_every_kind_arrive",
    "TravelsInItsMetadata": "test_metadata_are_small",
    "BelievesAnything": "test_nonsense_for_metadata_is_refused",
    "MistakesTheirsForMine": "test_both_sides_send_at_once",
    "EndsWithItsWaiter": "test_waiting_may_be_given_up_and_repeated",
    "KeepsWhatACancelledGetHeld": "test_a_cancelled_get_takes_nothing",
    "MournsForEver": "test_the_dead_stop_nobody_else",
    "OpensAgain": "test_closing_ends_what_waits",
    "LeavesADescriptor": "test_transfers_leave_nothing_behind",
    "Polls": "test_idle_relays_use_no_cpu",
    "PollsSlowly": "test_idle_relays_use_no_cpu",
    "LosesWhatShouldOutliveIt": "test_a_dead_sender_is_noticed_soon",
    "WritableViews": "test_views_are_read_only_and_free_their_bytes_at_their_end",
}
SCHEDULERS = {
    "AnswersTwice": "test_requests_are_answered_once",
    "IgnoresAbort": "test_an_aborted_request_says_nothing_more",
    "AdmitsWhatWasAborted": "test_an_abort_right_after_a_message_was_read_counts",
    "SwallowsErrors": "test_a_failing_request_hurts_nobody",
    "DiesOfAnError": "test_a_failing_request_hurts_nobody",
    "NeverStops": "test_stopping_ends_it_soon",
    "SpinsWhenIdle": "test_it_sleeps_when_there_is_nothing_to_do",
    "LooksNowAndThen": "test_it_sleeps_when_there_is_nothing_to_do",
    "MutatesItsInput": "test_inputs_are_left_as_they_are",
    "MixesUpCompany": "test_company_changes_no_answer",
    "KeepsEverything": "test_nothing_is_kept_of_ended_requests",
}

STEP_SCHEDULERS = {
    "ChangesItsStates": "test_a_step_that_raises_fails_its_request_alone",
    "OneAtATime": "test_requests_share_steps",
    "RunsToTheEnd": "test_a_short_request_does_not_wait_for_a_long_one",
    "FailsTogether": "test_a_step_that_raises_fails_its_request_alone",
    "ForgetsNothing": "test_an_abort_counts_between_steps",
}

PROJECTIONS = {
    "changes_the_payload": "test_it_leaves_its_input_as_it_is",
    "cannot_be_sent": "test_its_result_can_be_sent",
    "hands_on_its_container": "test_its_container_is_its_own",
    "differs_each_time": "test_it_gives_the_same_again",
}
PIPELINES = {
    "next='nowhere'": "test_its_topology_is_valid",
    "route_fn='wrong:no_such_function'": "test_every_reference_resolves_in_a_new_process",
    "factory=None, model_runner='wrong:no_such', scheduler='wrong:compute'": "test_every_reference_resolves_in_a_new_process",
    "factory=None, model_runner='wrong:compute', scheduler='wrong:no_such'": "test_every_reference_resolves_in_a_new_process",
    "factory=None, model_runner='wrong:compute', feedback='wrong:no_such', scheduler='wrong:compute'": (
        "test_every_reference_resolves_in_a_new_process"
    ),
    "factory='wrong:IgnoresAbort', factory_args={}": "test_an_abort_leaves_nothing",
    "factory='wrong:differs_each_time'": "test_streamed_together_or_alone_it_answers_alike",
}

RUNNERS = {
    "SeesItsNeighbours": "test_company_changes_no_answer",
    "DependsOnItsPlace": "test_the_order_of_company_changes_nothing",
    "DependsOnTheParts": "test_a_prompt_may_come_in_parts",
    "Counts": "test_asked_again_it_answers_the_same",
    "ChangesItsBatch": "test_batches_are_left_as_they_are",
    "ChangesItsPrompt": "test_batches_are_left_as_they_are",
    "ChangesItsMessage": "test_messages_are_left_as_they_are",
    "ReordersItsOutput": "test_tokens_come_in_the_order_of_the_batch",
    "SwapsTokens": "test_tokens_come_in_the_order_of_the_batch",
    "Reseeded": "test_asked_again_it_answers_the_same",
    "OneSeedForAll": "test_another_seed_is_another_answer",
    "ForgetsThePenalty": "test_tokens_are_chosen_by_the_base",
    "ChoosesItself": "test_tokens_are_chosen_by_the_base",
    "NeverStops": "test_a_request_ends_when_it_says",
    "SkipsAHook": "test_hooks_are_called_in_order",
    "KeepsRequests": "test_nothing_is_kept_of_requests_that_ended",
    "KeepsTensors": "test_nothing_is_kept_of_requests_that_ended",
    "RemembersNames": "test_a_name_that_was_forgotten_starts_afresh",
    "ReturnsItTwice": "test_a_request_is_returned_once",
    "DoesNotWait": "test_messages_that_come_late_change_nothing",
    "FallsOver": "test_a_bad_request_hurts_only_itself",
    "BlamesItself": "test_a_bad_request_hurts_only_itself",
    "SharesItsFeedback": "test_feedback_stays_with_its_request",
    "CannotRepeatAStep": "test_a_step_that_failed_is_repeated_exactly",
    "ItsStrategyRemembers": "test_nothing_is_kept_of_requests_that_ended",
    "FeedsOnlyOnce": "test_a_preempted_request_goes_on_exactly",
    "NeverAsksItsStrategy": "test_the_strategy_is_asked_at_every_step",
    "DropsWhatOthersSay": "test_company_changes_no_answer",
    "SaysItAgain": "test_company_changes_no_answer",
    "PrefillsAlways": "test_the_strategy_is_asked_at_every_step",
}

_RUNNER_TESTS = """
import right_runners
import wrong_runners
from omni_testing import FeedbackConformance, ModelRunnerConformance

for name in {names}:
    requests = getattr(right_runners, wrong_runners.kind_of_requests(name))
    runner = dict(runner=getattr(wrong_runners, name))
    globals()["Test" + name] = type("Test" + name, (requests, ModelRunnerConformance), runner)
    if requests is right_runners.FeedbackRequests:
        title = "TestStrategyOf" + name
        globals()[title] = type(title, (requests, FeedbackConformance), runner)
"""

_PROJECTION_TEST = """
from omni_testing import ProjectionConformance

class TestWrong(ProjectionConformance):
    projection = "wrong:{name}"

    def payloads(self):
        return [{{"n": 1}}, {{"n": 2}}]
"""

_PIPELINE_TEST = """
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest
from omni_testing import PipelineConformance

class TestWrong(PipelineConformance):
    def config(self):
        fields = dict(name="first", factory="wrong:entry", process="first", next="last") | dict({name})
        last = StageConfig(name="last", factory="wrong:compute", process="last", terminal=True)
        return PipelineConfig(model_path="none", stages=[StageConfig(**fields), last])

    def requests(self):
        return [OmniRequest({{"n": 1, "sleep": 0.05}}), OmniRequest({{"n": 2, "sleep": 0.05}})]
"""
PLUGINS = {
    "import numpy": "test_it_imports_in_no_time_and_without_heavy_libraries",
    "import time; time.sleep(0.05)": "test_it_imports_in_no_time_and_without_heavy_libraries",
    "raise SystemExit(1)": "test_it_is_loaded_without_complaint",
    "del omni_relays": "test_it_is_loaded_without_complaint",
    "omni_commands = hookimpl(lambda: components)": "test_its_entry_point_declares_its_api_levels",
    "def omni_schedulers(): return components": "test_it_is_loaded_without_complaint",
    "components *= 2": "test_its_names_are_unique",
    "components[0] = Component('shm', 'json:loads', 'a name that is taken')": "test_its_names_are_unique",
    "components.clear()": "test_its_names_are_unique",
    "components[0] = Component('mine', 'json:loads', '')": "test_everything_has_a_summary",
    "components[0] = Component('mine', 'json:loads', 'fine', probe=lambda: False)": "test_probes_answer",
    "components[0] = Component('mine', 'json:no_such', 'fine')": "test_its_targets_resolve_in_a_new_process",
}

_PLUGIN = """
from omni_core.hookspecs import Component, hookimpl
components = [Component("mine", "json:loads", "what it is")]

@hookimpl
def omni_relays():
    return components

{mistake}
"""

_PLUGIN_TEST = """
from omni_testing import PluginConformance

class TestWrong(PluginConformance):
    entry_point = "wrong-plugin"
"""

_RELAY_TESTS = """
import gc
import pytest
from omni_testing import RelayConformance

@pytest.fixture(autouse=True)
def nothing_is_left_for_the_next_one():
    yield
    gc.collect()  # tasks of wrong relays complain at their end, which Python 3.11 does not survive while it parses

for reference in {references}:
    title = "Test" + reference.partition(":")[2]
    globals()[title] = type(title, (RelayConformance,), dict(relay=reference))
"""

_SCHEDULER_TEST = """
import omni_testing.scheduler as suite
import wrong

suite.PATIENCE = 3.0

class TestWrong(suite.SchedulerConformance):
    def make(self):
        return wrong.{name}()

    def good(self, number):
        return {{"n": number}}

    def bad(self):
        return {{"fail": True}}

    def endless(self):
        return {{"n": 0, "sleep": 0.5}}
"""


_STEP_SCHEDULER_TESTS = """
import pytest
import omni_testing.scheduler
import omni_testing.step_scheduler as suite
import stepping

omni_testing.scheduler.PATIENCE = suite.PATIENCE = 3.0

for name in {names}:
    class Wrong(suite.StepSchedulerConformance):
        scheduler = getattr(stepping, name)

        def make(self):
            return self.scheduler()

        def good(self, number):
            return {{"goal": 2 + number}}

        def bad(self):
            return {{"fail": True}}

        def long(self):
            return {{"goal": 1000, "sleep": 0.005}}

        def bad_at_a_step(self):
            return {{"goal": 3, "wall": 1}}

    globals()["Test" + name] = type("Test" + name, (Wrong,), {{}})
    del Wrong
"""


def failures(folder: Path, source: str, test: str) -> tuple[list[str], str]:
    """The tests that fail when the one test of a suite runs on an implementation, as ``test``."""
    found, output = failed(folder, source, "-k", test)
    return [name.partition("::")[2] for name in found], output


def each_for_its_own(mistakes: dict[str, str]) -> str:
    """Return pytest's expression for the one test that is meant to catch each mistake."""
    return " or ".join(f"({name} and {test})" for name, test in mistakes.items())


def failed(folder: Path, source: str, *selection: str, timeout: float = 150) -> tuple[list[str], str]:
    """The tests of a file that fail, as ``TestClass::test`` without parameters."""
    path = folder / "test_wrong.py"
    path.write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "pytest", str(path), "-q", *selection, "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["-o", "faulthandler_timeout=60"]  # where it stands, should it stand still
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it does not end: {(error.stderr or b'').decode()[-6000:]}")
    assert "error" not in done.stdout.splitlines()[-1], done.stdout
    return re.findall(r"FAILED [^:]+::(\w+::\w+)", done.stdout), done.stdout


@pytest.fixture(scope="module")
def caught_relays(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Run the suite on all wrong relays in one process, because its start takes longer than most tests, and return what fails."""
    source = _RELAY_TESTS.format(references=[f"wrong:{name}" for name in RELAYS])
    return failed(tmp_path_factory.mktemp("relays"), source, "-k", each_for_its_own(RELAYS), timeout=280)


@pytest.mark.full
@pytest.mark.parametrize(("name", "test"), RELAYS.items())
def test_a_wrong_relay_is_caught(caught_relays: tuple[list[str], str], name: str, test: str) -> None:
    found, output = caught_relays
    assert f"Test{name}::{test}" in found, output


def test_bytes_may_outlive_their_sender(tmp_path: Path) -> None:
    source = _RELAY_TESTS.format(references=["outliving:FileRelay"])
    found, output = failed(tmp_path, source, "-k", "dead_sender or bytes_come_back")
    assert not found, output
    assert "2 passed" in output


@pytest.mark.parametrize(("name", "test"), few(SCHEDULERS.items(), 1))
def test_a_wrong_scheduler_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _SCHEDULER_TEST.format(name=name), test)
    assert test in found, output


def test_wrong_step_schedulers_are_caught(tmp_path: Path) -> None:
    source = _STEP_SCHEDULER_TESTS.format(names=list(STEP_SCHEDULERS))
    found, output = failed(tmp_path, source, "-k", each_for_its_own(STEP_SCHEDULERS))
    assert sorted(found) == sorted(f"Test{name}::{test}" for name, test in STEP_SCHEDULERS.items()), output


@pytest.fixture(scope="module")
def caught_runners(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Run the suite on all wrong runners in one process, because importing torch takes longer than the tests, and return what fails."""
    source = _RUNNER_TESTS.format(names=list(RUNNERS))
    return failed(tmp_path_factory.mktemp("runners"), source, "-k", each_for_its_own(RUNNERS))


@pytest.mark.parametrize(("name", "test"), RUNNERS.items())
def test_a_wrong_model_runner_is_caught(caught_runners: tuple[list[str], str], name: str, test: str) -> None:
    found, output = caught_runners
    assert {f"Test{name}::{test}", f"TestStrategyOf{name}::{test}"} & set(found), output


@pytest.mark.parametrize(("name", "test"), few(PROJECTIONS.items(), 2))
def test_a_wrong_projection_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _PROJECTION_TEST.format(name=name), test)
    assert test in found, output


def install_plugin(folder: Path, mistake: str) -> None:
    """A plugin on the path of the tests that run in ``folder``."""
    (folder / "wrong_plugin.py").write_text(_PLUGIN.format(mistake=mistake))
    info = folder / "wrong_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni]\nwrong-plugin = wrong_plugin [relays-1]\n")


@pytest.mark.parametrize(("mistake", "test"), few(PLUGINS.items(), 3))
def test_a_wrong_plugin_is_caught(tmp_path: Path, mistake: str, test: str) -> None:
    install_plugin(tmp_path, mistake)
    found, output = failures(tmp_path, _PLUGIN_TEST, test)
    assert test in found, output


@pytest.mark.parametrize("harmless", few(["", "print('hello from the import')"], 1))
def test_a_right_plugin_is_not(tmp_path: Path, harmless: str) -> None:
    install_plugin(tmp_path, harmless)
    found, output = failures(tmp_path, _PLUGIN_TEST, "test")
    assert found == [], output


@pytest.mark.parametrize(("name", "test"), few(PIPELINES.items(), 2))
def test_a_wrong_pipeline_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _PIPELINE_TEST.format(name=name), test)
    assert test in found, output


def test_what_the_wrong_ones_spoil_is_right(tmp_path: Path) -> None:
    """The same pipeline without a mistake passes, so what is caught is the mistake."""
    found, output = failures(tmp_path, _PIPELINE_TEST.format(name=""), "test")
    assert found == [], output
