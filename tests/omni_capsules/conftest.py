"""Records and capsules of the computes in ``computes.py``, made without a pipeline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from capsule_parts import MakeCapsule

from omni_capsules.capsule import Capsule, StageRecord, record_of
from omni_capsules.options import Options
from omni_capsules.records import Records
from omni_core.protocol.specs import StageSpec


@pytest.fixture(autouse=True)
def computes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let replays import the computes, and forget them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("computes", None)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "spool", "p", "here", Options(folder=str(tmp_path), inputs=True))


@pytest.fixture
def make_capsule(records: Records) -> MakeCapsule:
    """Return what makes a capsule of one stage from the events that ``write`` adds to its records."""

    def make(spec: StageSpec, write: Callable[[Records], None], **changes: Any) -> Capsule:
        write(records)
        found = [record_of(each) for each in records.of("r")]
        stages: list[StageRecord] = [each for each in found if each is not None]
        process = {"stages": [attrs.asdict(spec)], "kernels": {}, "env": {}, "ranks": 1}
        capsule = Capsule(request_id="r", reason="slow", state="completed", seconds=1.0, wall=0, stages=stages)
        return attrs.evolve(capsule, processes={"p": process}, **changes)

    return make
