"""Conformance of a pipeline as a part of a composed one: it answers as it does alone."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from attrs import evolve

from omni_cli.deploy.writing import dump_json, load_config
from omni_core.api import EndpointsConfig, OmniRequest, PipelineConfig, compose, open_async
from omni_core.runtime_api import encode
from omni_testing.driving import driven, started

NAME = "part"


class PartConformance:
    """Subclass it and return the pipeline and some requests; pytest runs every test."""

    def config(self) -> PipelineConfig:
        """Return the pipeline, on a small checkpoint."""
        raise NotImplementedError

    def requests(self) -> list[OmniRequest]:
        """Return requests whose answers are always the same (greedy, or with a seed)."""
        raise NotImplementedError

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        """Return whether two answers are equal; the default compares every byte."""
        return encode(one) == encode(other)

    def composed(self) -> PipelineConfig:
        """Return a composed pipeline with this part alone."""
        return compose({NAME: self.config()}, [])

    def test_its_config_survives_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pipeline.json"
            path.write_text(dump_json(self.composed()))
            assert load_config(path) == self.composed()

    @driven
    async def test_it_answers_as_it_does_alone(self) -> None:
        alone = await self._answers(self.config())
        for number, (one, other) in enumerate(zip(alone, await self._answers(self.composed()), strict=True)):
            own = {stage.removeprefix(f"{NAME}-"): data for stage, data in other.items()}
            assert self.same(one, own), f"request {number} has another answer in a composed pipeline"

    async def _answers(self, config: PipelineConfig) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            async with started(open_async(evolve(config, endpoints=EndpointsConfig(folder)))) as client:
                return list(await asyncio.gather(*map(client.submit, self.requests())))
