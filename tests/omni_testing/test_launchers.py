"""The suite of launchers passes the built-in one, and catches wrong ones."""

from __future__ import annotations

import inspect

import pytest
import wrong_launchers

from omni_testing import LauncherConformance


class TestLocal(LauncherConformance):
    launcher = "omni_core.machines:LocalLauncher"


CAUGHT = {
    "TakesAnything": "test_a_need_that_cannot_be_met_is_an_error_that_names_it",
    "IgnoresSettings": "test_an_unknown_setting_is_refused",
    "TwoFolders": "test_units_of_one_host_are_on_one_machine_and_others_are_not",
    "DropsVariables": "test_a_process_has_the_variables_of_its_spec_and_its_grant",
    "TellsTwice": "test_the_end_of_a_process_is_told_once_with_its_cause",
    "TellsNothing": "test_the_end_of_a_process_is_told_once_with_its_cause",
    "AddsAnything": "test_a_unit_that_cannot_be_added_changes_nothing",
    "KnowsTheLastUnitOnly": "test_a_unit_may_be_added_while_others_run",
    "LeavesTheForkServer": "test_release_can_be_repeated_and_leaves_no_process",
}


@pytest.mark.parametrize(("launcher", "test"), CAUGHT.items())
def test_a_wrong_launcher_is_caught(launcher: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("launcher", "launcher_run"):
        monkeypatch.setattr(f"omni_testing.{module}.PATIENCE", 4.0)
    monkeypatch.setattr("omni_testing.launcher.LOSS_SECONDS", 1.0)

    class Wrong(LauncherConformance):
        pass

    Wrong.launcher = f"wrong_launchers:{launcher}"
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Wrong(), test)()


def test_every_wrong_launcher_is_tried() -> None:
    names = {
        name
        for name, each in inspect.getmembers(wrong_launchers, inspect.isclass)
        if each.__module__ == "wrong_launchers"
    }
    assert {name for name in names if not name.startswith("_")} == set(CAUGHT)
