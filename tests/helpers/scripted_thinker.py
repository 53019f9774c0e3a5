"""Qwen3-Omni's thinker with chosen words: it computes as always, but writes what a model that calls tools would."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from transformers import AutoTokenizer

from omni_core.model_runner import ARRequest, ForwardBatch, ForwardOutput
from omni_qwen3.thinker import ThinkerRunner

CALL = json.dumps({"name": "weather", "arguments": {"city": "Köln"}}, ensure_ascii=False)


@cache
def _tokenizer(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)


class ScriptedThinker(ThinkerRunner):
    """Calls a tool that the prompt shows; tells its result if the prompt has one; otherwise says that there is none. What its random
    weights write is left where it is held to a structure.
    """

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for index, (request, _) in enumerate(sampled):
            if request.constraint is not None and "arguments" not in request.request.params["thinker"][
                "structured"
            ].get("grammar", ""):
                continue
            script = self._script(request)
            done = len(request.output_ids)
            request.output_ids[-1] = token = script[done - 1]
            sampled[index] = (request, token)
            request.finish_reason = "stop" if done == len(script) else None
        super().after_sampling(batch, output, sampled)

    def _script(self, request: ARRequest) -> list[int]:
        tokenizer = _tokenizer(str(self._config.folder))
        prompt = tokenizer.decode(request.prompt_ids)
        reply = "None is known."
        if prompt.endswith('"weather", "arguments":'):
            reply = ' {"city": "Bonn"}}\n</tool_call>'
        elif "<tool_response>" in prompt:
            reply = "It says " + prompt.split("<tool_response>\n")[1].split("\n</tool_response>")[0]
        elif '"name": "weather"' in prompt:
            reply = f"I look.\n<tool_call>\n{CALL}\n</tool_call>"
        ids: list[int] = tokenizer.encode(reply, add_special_tokens=False)
        return [*ids, self._config.im_end]
