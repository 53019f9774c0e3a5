"""From media files to text and a waveform: numerically equal to transformers 5.23, in seven processes and in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import SHAPES, pipeline, request_of
from tiers import few

from omni_core.client import open_async

WAVE_TOLERANCE = 1e-4


@pytest.mark.parametrize("processes", [pytest.param("separate", marks=pytest.mark.full), "one"])
@pytest.mark.parametrize("shape", few(SHAPES, 1))
async def test_every_modality_equals_the_reference(
    shape: str,
    processes: str,
    checkpoints: dict[str, Path],
    cases: dict[str, Any],
    reference: Callable[[str], dict[str, np.ndarray]],
) -> None:
    expected = reference(shape)
    wrong = []
    async with open_async(pipeline(checkpoints[shape], processes=processes)) as client:
        for name, case in cases.items():
            answer = await client.submit(request_of(case))
            wave, target = np.asarray(answer["code2wav"].samples), expected[f"{name}.wave"]
            if "aloud" in case:
                assert set(answer) == {"code2wav"}, "nothing is written"
                pieces = [each.data.samples async for each in client.stream(request_of(case)) if not each.final]
                assert len(pieces) > 2
                assert np.array_equal(np.concatenate(pieces), wave)
            if (ids := _written(answer, expected, name)) != expected[f"{name}.ids"].tolist():
                wrong.append(f"{name}: ids {ids} instead of {expected[f'{name}.ids'].tolist()}")
            elif wave.shape != target.shape:
                wrong.append(f"{name}: {wave.shape[0]} samples instead of {target.shape[0]}")
            elif np.abs(wave - target).max() > WAVE_TOLERANCE:
                wrong.append(f"{name}: waveform off by {np.abs(wave - target).max():.2e}")
    assert not wrong, "\n".join(wrong)


def _written(answer: dict[str, Any], expected: dict[str, np.ndarray], name: str) -> list[int]:
    """Return the ids of a reply; where none were written, those that were given to the reference."""
    return list(answer["decode"].token_ids) if "decode" in answer else expected[f"{name}.ids"].tolist()


@pytest.mark.parametrize("shape", few(SHAPES, 1))
def test_the_reference_answers_are_not_degenerate(
    shape: str, cases: dict[str, Any], reference: Callable[[str], dict[str, np.ndarray]]
) -> None:
    """Constant tokens or silence would make the parity test vacuous."""
    expected = reference(shape)
    replies = [tuple(expected[f"{name}.ids"].tolist()) for name in cases]
    assert len(set(replies)) > len(cases) // 2, "the replies hardly depend on the input"
    assert max(len(set(reply)) for reply in replies) > 8, "the replies are constant"
    loudness = [float(np.abs(expected[f"{name}.wave"]).max()) for name in cases]
    assert min(loudness) > 1e-2, f"silence: {loudness}"
