"""Conformance of what a pipeline reads from a checkpoint's config before it runs: its interface, and the claim of a fallback."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_core.api import PipelineComponent, load
from omni_core.runtime_api import interface_of

HEAVY = ("torch", "transformers")

_READ = """
import sys
from omni_core.references import load
folder, names, *references = sys.argv[1:]
for reference in references:
    load(reference)(folder)
print(*[name for name in names.split() if name in sys.modules])
"""

Files = Mapping[str, Any]
"""JSON files by their names: ``{"config.json": {"architectures": [...]}}``."""


class CheckpointConformance:
    """Subclass it and return the component and configs; a checkpoint is its JSON files, without weights.

    A component without ``interface_from`` or without ``fallback`` passes the tests of that.
    """

    def component(self) -> PipelineComponent:
        """Return the pipeline's component."""
        raise NotImplementedError

    def checkpoints(self) -> list[Files]:
        """Return checkpoints that the pipeline can run, at least one."""
        raise NotImplementedError

    def others(self) -> list[Files]:
        """Return checkpoints that a fallback must leave alone, beside those that say nothing."""
        return []

    def test_its_interface_is_read_from_the_config(self) -> None:
        component = self.component()
        for files in self._given() if component.interface_from is not None else []:
            with _written(files) as folder:
                found = interface_of(component, str(folder))
                assert found is not None
                assert found.inputs, f"{files}: interface.inputs: name the kinds of message parts that it takes"
                assert found.outputs, f"{files}: interface.outputs: name the modalities that it answers in"
                assert interface_of(component, str(folder)) == found, f"{files}: read again, it is another one"

    def test_a_fallback_claims_what_it_can_run_and_nothing_else(self) -> None:
        reference = self.component().fallback
        if reference is None:
            return
        claims = load(reference)
        for files in self._given():
            with _written(files) as folder:
                assert claims(str(folder)) is None, f"{files}: it does not claim it: {claims(str(folder))}"
        unknown = {"architectures": ["NoSuchModelOfAnyone"], "model_type": "no_such_model"}
        for files in [*self.others(), {"config.json": {}}, {"config.json": []}, {"config.json": unknown}]:
            with _written(files) as folder:
                answer = claims(str(folder))
                assert isinstance(answer, str), f"{files}: it must say in a text why it does not run it, not {answer!r}"
                assert answer, f"{files}: it must say why it does not run it"

    def test_reading_a_config_imports_no_heavy_library(self) -> None:
        component = self.component()
        references = [each for each in (component.interface_from, component.fallback) if each is not None]
        with _written(self._given()[0]) as folder:
            command = [sys.executable, "-c", _READ, str(folder), " ".join(HEAVY), *references]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert not done.stdout.strip(), f"it imports {done.stdout.strip()}"

    def _given(self) -> list[Files]:
        found = self.checkpoints()
        assert found, "checkpoints() must give at least one"
        return found


@contextmanager
def _written(files: Files) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(json.dumps(content))
        yield Path(folder)
