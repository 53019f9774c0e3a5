"""Counters of the stages as metrics: bytes and messages of every edge."""

from __future__ import annotations

import pytest
from attrs import evolve
from omni_serve_clients import http_client
from prometheus_client.parser import text_string_to_metric_families
from serve_stages import speaking_pipeline

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_goes_over_an_edge_is_counted(pipe: AsyncPipe) -> None:
    config = speaking_pipeline()
    apart = [each if each.name != "write" else evolve(each, process="q") for each in config.stages]
    async with open_async(evolve(config, stages=apart)) as own, http_client(create_app(own, Settings())) as http:
        content = "a long text " * 50
        asked = {"model": "tones", "messages": [{"role": "user", "content": content}], "modalities": ["text", "audio"]}
        assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200
        text = (await http.get("/metrics")).text
    found = {
        (sample.name, sample.labels.get("source"), sample.labels.get("target")): (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels, value = found["omni_edge_bytes_total", "understand", "write"]
    assert labels["process"] == "p"
    assert value > len(content)
    assert found["omni_edge_messages_total", "understand", "write"][1] == 1
    assert found["omni_edge_messages_total", "understand", "speak"][1] == 1
    assert found["omni_edge_bytes_total", "understand", "speak"][1] == 0  # within a process nothing is copied
    assert 'counter="edge.' not in text
