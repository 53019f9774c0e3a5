"""Count the functions, files and crossings between distributions of three journeys: ``python tests/hops.py [--list]``.

A talker's decode step; a request from the client to the first scheduler; a tensor from stage to stage by shm, in two processes. Counted
are functions of our distributions that run in one warm pass, on the threads that carry it: no comprehensions, no generated methods. What
the codec, the layers of a network and the operations call (``INSIDE``) is counted apart, because a reader takes such a call as one step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import omni_core as omni
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest, StagePayload

FOLDER = "OMNI_HOPS"
INSIDE = ("omni_core.protocol.", "omni_qwen3.layers", "omni_qwen3.code_predictor", "omni_torch.operations.")
Function = tuple[str, str, bool]
"""The module, the qualified name, and whether something of ``INSIDE`` calls it."""


class Profile:
    """Notes the functions of our distributions that a thread calls, cut into episodes: from one outermost call to its return."""

    def __init__(self, path: Path | None = None) -> None:
        self.episodes: list[list[Function]] = [[]]
        self._depth, self._inside, self._path = 0, 0, path

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if not module.startswith("omni_") or code.co_filename.startswith("<") or event not in ("call", "return"):
            return
        if event == "call":
            self._depth += 1
            self.episodes[-1].append((module, code.co_qualname, bool(self._inside)))
            if not self._inside and module.startswith(INSIDE):
                self._inside = self._depth
        elif self._depth:
            if self._inside == self._depth:
                self._inside = 0
            self._depth -= 1
            if not self._depth and self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps(self.episodes.pop()) + "\n")
                self.episodes.append([])


def profiled(request_id: str, payload: StagePayload) -> str:
    """Route to the second stage, on the event loop of the first's process, which is profiled from now on."""
    if sys.getprofile() is None:
        sys.setprofile(Profile(Path(os.environ[FOLDER]) / "first"))
    return "second"


def arrived(payload: StagePayload) -> StagePayload:
    """Project on the event loop of the second stage's process, which is profiled from now on."""
    if sys.getprofile() is None:
        sys.setprofile(Profile(Path(os.environ[FOLDER]) / "second"))
    return payload


def first(payload: StagePayload) -> Any:
    import torch

    return torch.ones(2**18)


def second(payload: StagePayload) -> Any:
    return float(payload.data.sum())


def third(payload: StagePayload) -> Any:
    return payload.data


def pipeline(folder: Path) -> PipelineConfig:
    """Two processes. The second has another stage behind it, so that a function of ours runs on its event loop."""
    stages = [
        StageConfig(name="first", process="one", factory="hops:first", next=["second"], route_fn="hops:profiled"),
        StageConfig(
            name="second",
            process="two",
            factory="hops:second",
            next=["third"],
            project_payload={"third": "hops:arrived"},
        ),
        StageConfig(name="third", process="one", factory="hops:third", terminal=True),
    ]
    return PipelineConfig(model_path="none", name="hops", stages=stages, endpoints=EndpointsConfig(str(folder)))


def until(episode: list[Function], last: str) -> list[Function]:
    names = [each[1] for each in episode]
    return episode[: len(names) - names[::-1].index(last)]


def pick(path: Path, holds: str, last: str) -> list[Function]:
    """Return the newest episode that has a function, up to its last call of another."""
    episodes = [[tuple(each) for each in json.loads(line)] for line in path.read_text().splitlines()]
    return until(next(each for each in reversed(episodes) if any(name == holds for _, name, _ in each)), last)


async def travel(folder: Path) -> dict[str, list[Function]]:
    here = Profile()
    async with omni.open_async(pipeline(folder)) as pipe:
        for _ in range(3):
            await pipe.submit(OmniRequest({"text": "warm"}))
        sys.setprofile(here)
        await pipe.submit(OmniRequest({"text": "counted"}))
        sys.setprofile(None)
    calls = here.episodes[0]
    out = calls[: [each[1] for each in calls].index("Coordinator._news")]
    begin = pick(folder / "first", "Stage.receive_payload", "MessageQueue.put")
    sent = pick(folder / "first", "Transfer.send", "Peer.wrote")
    taken = pick(folder / "second", "Stage.receive_payload", "MessageQueue.put")
    return {"a request to the first scheduler": out + begin, "a tensor from stage to stage by shm": sent + taken}


def decode_step() -> list[Function]:
    import torch

    from omni_testing.ours.qwen3 import TalkerConformance
    from omni_torch.engine.scheduler import EngineScheduler

    torch.set_num_threads(1)
    suite = TalkerConformance()
    with torch.inference_mode():
        scheduler = EngineScheduler(suite.make(), kv_blocks=64)
        for message in suite.messages("r", 20, {"temperature": 0.0, "max_new_tokens": 30}):
            scheduler.inbox.put(message)
        for _ in range(4):
            scheduler.loop.turn()
        here = Profile()
        sys.setprofile(here)
        scheduler.loop.turn()
        sys.setprofile(None)
    return here.episodes[0]


def report(title: str, calls: list[Function], listed: bool) -> None:
    inside = dict.fromkeys(each[:2] for each in calls if each[2])
    found = [each[:2] for each in calls if not each[2]]
    ways = {"the way": dict.fromkeys(found), "with what is inside": dict.fromkeys(each[:2] for each in calls)}
    print(title)
    for what, functions in ways.items():
        kept = [each for each in functions if not each[1].endswith(("comp>", "<genexpr>"))]
        owners = [module.partition(".")[0] for module, _ in kept]
        crossings = sum(one != other for one, other in pairwise(owners))
        files = len({module for module, _ in kept})
        print(
            f"  {what}: {len(kept)} functions, {files} files, {crossings} crossings of {len(set(owners))} distributions"
        )
    for module, name in ways["with what is inside"] if listed else ():
        print(f"    {'    ' if (module, name) in inside and (module, name) not in found else ''}{module}: {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the functions, in the order of their first calls")
    listed = parser.parse_args().list
    report("a decode step of the talker", decode_step(), listed)
    with tempfile.TemporaryDirectory(prefix="omni-hops-") as folder:
        os.environ[FOLDER] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        for title, calls in asyncio.run(travel(Path(folder))).items():
            report(title, calls, listed)


if __name__ == "__main__":
    main()
