"""A suite that lets a wrong implementation pass is worthless: each mistake must be caught, by the test that is meant to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

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
    "WritableViews": "test_views_are_read_only_and_free_their_bytes_at_their_end",
}
SCHEDULERS = {
    "AnswersTwice": "test_requests_are_answered_once",
    "IgnoresAbort": "test_an_aborted_request_says_nothing_more",
    "SwallowsErrors": "test_a_failing_request_hurts_nobody",
    "DiesOfAnError": "test_a_failing_request_hurts_nobody",
    "NeverStops": "test_stopping_ends_it_soon",
    "SpinsWhenIdle": "test_it_sleeps_when_there_is_nothing_to_do",
    "LooksNowAndThen": "test_it_sleeps_when_there_is_nothing_to_do",
    "MutatesItsInput": "test_inputs_are_left_as_they_are",
    "MixesUpCompany": "test_company_changes_no_answer",
    "KeepsEverything": "test_nothing_is_kept_of_ended_requests",
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
    "factory='wrong:IgnoresAbort', factory_args={}": "test_an_abort_leaves_nothing",
    "factory='wrong:differs_each_time'": "test_streamed_together_or_alone_it_answers_alike",
}

_PROJECTION_TEST = """
from omni_core.testing import ProjectionConformance

class TestWrong(ProjectionConformance):
    projection = "wrong:{name}"

    def payloads(self):
        return [{{"n": 1}}, {{"n": 2}}]
"""

_PIPELINE_TEST = """
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest
from omni_core.testing import PipelineConformance

class TestWrong(PipelineConformance):
    def config(self):
        fields = dict(name="first", factory="wrong:entry", process="first", next="last") | dict({name})
        last = StageConfig(name="last", factory="wrong:compute", process="last", terminal=True)
        return PipelineConfig(model_path="none", stages=[StageConfig(**fields), last])

    def requests(self):
        return [OmniRequest({{"n": 1, "sleep": 0.05}}), OmniRequest({{"n": 2, "sleep": 0.05}})]
"""

_RELAY_TEST = """
from omni_core.testing import RelayConformance

class TestWrong(RelayConformance):
    relay = "wrong:{name}"
"""

_SCHEDULER_TEST = """
import omni_core.testing.scheduler as suite
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


def failures(folder: Path, source: str, test: str) -> tuple[list[str], str]:
    """The tests that fail when the one test of a suite runs on an implementation."""
    path = folder / "test_wrong.py"
    path.write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", str(path), "-q", "-k", test, "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=150, check=False
    )
    assert "error" not in done.stdout.splitlines()[-1], done.stdout
    return re.findall(r"FAILED \S+::(\w+)", done.stdout), done.stdout


@pytest.mark.parametrize(("name", "test"), RELAYS.items())
def test_a_wrong_relay_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _RELAY_TEST.format(name=name), test)
    assert test in found, output


@pytest.mark.parametrize(("name", "test"), SCHEDULERS.items())
def test_a_wrong_scheduler_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _SCHEDULER_TEST.format(name=name), test)
    assert test in found, output


@pytest.mark.parametrize(("name", "test"), PROJECTIONS.items())
def test_a_wrong_projection_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _PROJECTION_TEST.format(name=name), test)
    assert test in found, output


@pytest.mark.parametrize(("name", "test"), PIPELINES.items())
def test_a_wrong_pipeline_is_caught(tmp_path: Path, name: str, test: str) -> None:
    found, output = failures(tmp_path, _PIPELINE_TEST.format(name=name), test)
    assert test in found, output


def test_what_the_wrong_ones_spoil_is_right(tmp_path: Path) -> None:
    """The same pipeline without a mistake passes, so what is caught is the mistake."""
    found, output = failures(tmp_path, _PIPELINE_TEST.format(name=""), "test")
    assert found == [], output
