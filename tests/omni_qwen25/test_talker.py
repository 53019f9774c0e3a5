"""The talker shares what conversations have in common: not the voice, and not the first token of a reply."""

from __future__ import annotations

import torch

from omni_core.api import ARRequest
from omni_testing.ours.qwen25 import TalkerConformance
from omni_torch.engine.positions import BlockKeys

BLOCK = 16


def request(speaker: str = "chelsie", digest: bytes | None = b"rows", louder: bool = False) -> ARRequest:
    cases = TalkerConformance()
    [start, text, *_] = cases.messages(
        "r", BLOCK - 2 - 4, {"temperature": 0.0}
    )  # a block with the two rows of the reply
    start.data["content"] = None if digest is None else [(0, BLOCK - 2, digest)]
    assert start.request is not None
    start.request.metadata["speaker"] = speaker
    if louder:
        text.data["rows"] = text.data["rows"] + 1
    runner = cases.make()
    with torch.inference_mode():
        made = [made for made in map(runner.receive, (start, text)) if made is not None]
    assert len(made) == 1
    assert len(made[0].prompt_ids) == BLOCK
    return made[0]


def test_blocks_of_another_voice_text_or_conversation_are_others() -> None:
    keys = [BlockKeys(each, BLOCK).first(BLOCK) for each in (request(), request(), request("ethan"))]
    keys += [BlockKeys(request(**changed), BLOCK).first(BLOCK) for changed in ({"digest": b"other"}, {"louder": True})]
    assert keys[0] == keys[1]
    assert len({key for [key] in keys}) == 4
    assert BlockKeys(request(digest=None), BLOCK).first(BLOCK) == []
