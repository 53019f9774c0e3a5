"""``omni plugins check RELAY --pipeline``: a relay under a whole pipeline, beside shared memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from omni_core.cli.main import omni
from omni_core.protocol.outputs import AudioResult, TextResult
from omni_testing.comparing import alike, difference

STAGES = """
name: two-processes
model_path: none
stages:
  - {{name: make, process: a, factory: "corrupting_relay:make", next: answer}}
  - {{name: answer, process: {process}, factory: "corrupting_relay:answer", terminal: true}}
"""


Check = Callable[..., Result]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Run the command on two stages, in two processes or in one."""

    def run(relay: str, process: str = "b") -> Result:
        path = tmp_path / "pipeline.yaml"
        path.write_text(STAGES.format(process=process))
        return CliRunner().invoke(omni, ["plugins", "check", relay, "--pipeline", str(path)])

    return run


def test_a_relay_that_delivers_what_was_sent_passes(check: Check) -> None:
    result = check("shm")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("ok  relay shm under pipeline two-processes: 1 messages, 8,")


def test_a_relay_that_changes_a_byte_is_caught(check: Check) -> None:
    result = check("corrupting_relay:FlipsAByte")
    assert result.exit_code == 1
    assert "the result['answer']['numbers']: 1 of 2000 values differ by shm and by " in result.output


def test_a_relay_that_fails_is_reported_with_its_error(check: Check) -> None:
    result = check("corrupting_relay:CannotRead")
    assert result.exit_code == 1
    assert "the bytes are gone" in result.output


def test_a_pipeline_that_sends_nothing_by_a_relay_proves_nothing(check: Check) -> None:
    result = check("shm", process="a")
    assert result.exit_code == 1
    assert "nothing went by it" in result.output


def test_an_unknown_relay_a_missing_one_and_two_are_errors(check: Check) -> None:
    assert "did you mean 'shm'" in str(check("shn").exception)
    for relays in ([], ["shm", "shm"]):
        assert CliRunner().invoke(omni, ["plugins", "check", *relays, "--pipeline", "demo"]).exit_code == 2


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.1]}, "x['a'][1]: 2.0 and 2.1"),
        ({"a": 1}, {"b": 1}, "x: keys ['a'] and ['b']"),
        ([1], [1, 2], "x: 1 and 2 items"),
        (1, 1.0, "x: a int and a float"),
        (np.zeros(3), np.array([0, 1, 0.0]), "x: 1 of 3 values differ"),
        (np.zeros(3), np.zeros(4), "x: float64 (3,) and float64 (4,)"),
        (torch.zeros(2, 2), torch.ones(2, 2), "x: 4 of 4 values differ"),
        (torch.zeros(2), torch.tensor([0.0, float("nan")]), "x: 1 of 2 values differ"),
        (TextResult("a"), TextResult("b"), "x.text: 'a' and 'b'"),
        (AudioResult(np.zeros(2), 8), AudioResult(np.ones(2), 8), "x.samples: 2 of 2 values differ"),
    ],
)
def test_the_first_difference_is_named(one: object, other: object, expected: str) -> None:
    assert difference(one, other, "x") == expected
    assert alike(one, one) or "nan" in str(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.00005),
        (np.full(3, 2.0), np.full(3, 2.0001)),
        (torch.tensor([float("inf")]), torch.tensor([float("inf")])),
    ],
)
def test_floating_point_numbers_may_differ_a_little(one: object, other: object) -> None:
    assert alike(one, other)
