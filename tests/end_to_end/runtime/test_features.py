"""Features of a pipeline's config, each in a running pipeline, and the rules of objects within a process."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import StageConfig
from omni_core.errors import RequestFailedError, RequestTimeoutError
from omni_core.protocol.messages import OmniRequest


def stage(name: str, function: str, **fields: Any) -> StageConfig:
    return StageConfig(**{"process": name, **fields}, name=name, factory=f"feature_stages:{function}")


async def test_runtime_overrides_reach_only_the_factory_of_their_stage(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("first", "settings", next="last", factory_args={"nested": {"a": 1, "b": 1}}),
        stage("last", "settings", terminal=True, factory_args={"size": 5}),
        runtime_overrides={"last": {"size": 7, "nested": {"b": [2, 3]}}},
    )
    async with open_async(config) as client:
        answer = (await client.submit(OmniRequest({})))["last"]
        assert answer["given"] == {"size": 7, "nested": {"b": [2, 3]}}


async def test_env_defaults_are_set_before_factories_and_do_not_override_the_environment(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_TEST_GIVEN", "from the shell")
    config = make_pipeline(
        run_folder,
        stage("only", "settings", terminal=True),
        env_defaults={"OMNI_TEST_DEFAULT": "from the config", "OMNI_TEST_GIVEN": "from the config"},
    )
    async with open_async(config) as client:
        answer = (await client.submit(OmniRequest({})))["only"]
        assert answer["env"] == {"OMNI_TEST_DEFAULT": "from the config", "OMNI_TEST_GIVEN": "from the shell"}
    assert "OMNI_TEST_DEFAULT" not in os.environ


async def test_env_of_a_stage_is_that_of_its_process_and_overrides_the_environment(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_TEST_GIVEN", "from the shell")
    config = make_pipeline(
        run_folder,
        stage("first", "settings", next="last", env={"OMNI_TEST_GIVEN": "from the stage"}),
        stage("last", "settings", terminal=True, env={"OMNI_TEST_DEFAULT": "of the last"}),
        env_defaults={"OMNI_TEST_DEFAULT": "from the config"},
    )
    async with open_async(config) as client:
        answer = (await client.submit(OmniRequest({})))["last"]
        assert answer["env"] == {"OMNI_TEST_DEFAULT": "of the last", "OMNI_TEST_GIVEN": "from the shell"}
    swapped = evolve(
        config, stages=[evolve(config.stages[0], env={}), evolve(config.stages[1], env=config.stages[0].env)]
    )
    async with open_async(swapped) as client:
        answer = (await client.submit(OmniRequest({})))["last"]
        assert answer["env"] == {"OMNI_TEST_DEFAULT": "from the config", "OMNI_TEST_GIVEN": "from the stage"}
    assert os.environ["OMNI_TEST_GIVEN"] == "from the shell"


async def test_endpoints_are_private_and_where_the_config_says(run_folder: Path) -> None:
    config = make_pipeline(run_folder, stage("only", "settings", terminal=True))
    async with open_async(config):
        (folder,) = run_folder.glob("omni-*")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name for path in folder.glob("*.sock")} >= {"coordinator.sock"}
    assert not folder.exists()


async def test_the_entry_stage_need_not_come_first(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("last", "pass_on", terminal=True),
        stage("first", "pass_on", next="last"),
        entry_stage="first",
    )
    async with open_async(config) as client:
        assert (await client.submit(OmniRequest({"a": 1}))) == {"last": {"a": 1}}


@pytest.mark.parametrize("group", ["process", "fused"])
async def test_a_single_target_in_the_process_gets_the_object_itself(run_folder: Path, group: str) -> None:
    together = {"process": "all"} if group == "process" else {}
    config = make_pipeline(
        run_folder,
        stage("keep", "keep", next="compare", **together),
        stage("compare", "compare", terminal=True, **together),
        fused_stages=[["keep", "compare"]] if group == "fused" else [],
    )
    async with open_async(config) as client:
        answer = (await client.submit(OmniRequest({"x": 1})))["compare"]
        assert answer["same"]
        assert [answer["pid"]] == list(client.process_ids.values())


async def test_several_targets_in_the_process_get_a_container_each(run_folder: Path) -> None:
    process = {"process": "all"}
    config = make_pipeline(
        run_folder,
        stage("keep", "keep", next=["one", "two"], **process),
        stage("one", "compare", next="join", **process),
        stage("two", "compare", next="join", **process),
        stage("join", "pass_on", wait_for=["one", "two"], merge_fn="feature_stages:merge", terminal=True, **process),
    )
    async with open_async(config) as client:
        answer = (await client.submit(OmniRequest({"x": 1})))["join"]
        assert [answer[name]["same"] for name in ("one", "two")].count(True) <= 1
        assert answer["one"]["shares"]
        assert answer["two"]["shares"]


async def test_changes_of_shared_objects_are_detected_in_debug_mode(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = {"process": "all"}
    config = make_pipeline(
        run_folder,
        stage("make", "make_list", next="change", **process),
        stage("change", "change", terminal=True, **process),
    )
    async with open_async(config) as client:
        assert (await client.submit(OmniRequest({})))["change"] == [1, 2, 3, 4]
    monkeypatch.setenv("OMNI_CHECK_MUTATION", "1")
    async with open_async(config) as client:
        with pytest.raises(RequestFailedError, match=r"'make' handed to stage 'change' was changed.*data\['values'\]"):
            await client.submit(OmniRequest({}))


async def test_a_generator_function_is_a_stage_that_streams_to_the_client(run_folder: Path) -> None:
    config = make_pipeline(run_folder, stage("only", "letters", terminal=True))
    async with open_async(config) as client:
        events = [(event.data, event.final) async for event in client.stream(OmniRequest({"word": "omni"}))]
        assert events == [*((letter, False) for letter in "omni"), ("OMNI", True)]
        assert await client.submit(OmniRequest({"word": "omni"})) == {"only": "OMNI"}
        with pytest.raises(RequestFailedError, match="SystemExit: no such word"):
            await client.submit(OmniRequest({"word": "bad"}))
        assert await client.submit(OmniRequest({"word": "still"})) == {"only": "STILL"}


async def test_a_generator_function_streams_to_other_stages(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("spell", "letters", next="gather", stream_to=["gather"]),
        stage("gather", "Gather", terminal=True),
    )
    async with open_async(config) as client:
        assert await client.submit(OmniRequest({"word": "omni"})) == {"gather": list("omni")}


async def test_a_batch_function_is_batched_by_the_config(run_folder: Path) -> None:
    arguments = {"batch_size": 4, "batch_wait": 60.0}
    config = make_pipeline(run_folder, stage("only", "sizes", terminal=True, factory_args=arguments))
    async with open_async(config) as client:
        answers = await asyncio.gather(*(client.submit(OmniRequest({"n": n})) for n in range(8)))
        assert [answer["only"] for answer in answers] == [{"n": n, "batch": 4} for n in range(8)]


async def test_a_timeout_names_the_source_whose_stream_does_not_end(run_folder: Path) -> None:
    config = make_pipeline(
        run_folder,
        stage("start", "pass_on", next=["upper", "tone"], route_fn="feature_stages:route_to"),
        stage("upper", "pass_on", next="gather", stream_to=["gather"]),
        stage("tone", "pass_on", next="gather", stream_to=["gather"]),
        stage("gather", "Gather", terminal=True, factory_args={"sources": ["upper", "tone"]}),
    )
    async with open_async(config) as client:
        with pytest.raises(RequestTimeoutError, match="stage 'gather' waits for the end of the stream from 'tone'"):
            await client.submit(OmniRequest({"to": ["upper"]}, timeout=2.0))
