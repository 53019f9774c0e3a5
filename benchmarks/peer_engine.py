"""One engine in a process of its own, for ``engine.py --beside``: it generates what its parent asks for, and measures that.

    PYTHON benchmarks/peer_engine.py     (started by beside.py; lines of JSON on standard input and output)

The first line has ``engine``, ``checkpoint``, ``weights``, ``threads`` and ``scratch``, and is answered when the engine is loaded. Each
later one has ``prompts`` (lists of ids) and ``tokens`` (new ones of each), and is answered with the ids and the seconds of both clocks:
``prefill``, until every request has its first token, and ``decode``, from there until the first request ends, with the ``decoded`` tokens
of that time. This file runs in the environments of other engines, so it imports nothing of ours at the top.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Answer = dict[str, Any]

DTYPES = ("float32", "bfloat16")
GGML_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}


class Watch:
    """Wall and CPU seconds since the last look."""

    def __init__(self) -> None:
        self._last = self._now()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def look(self) -> dict[str, float]:
        now, before = self._now(), self._last
        self._last = now
        return {"wall": now[0] - before[0], "cpu": now[1] - before[1]}


def answer(ids: list[list[int]], prefill: dict[str, float], decode: dict[str, float], decoded: int) -> Answer:
    return {"ids": ids, "prefill": prefill, "decode": decode, "decoded": decoded}


class Engine(Protocol):
    """The engine that a worker drives. Requests are greedy and never stop early."""

    def generate(self, prompts: list[list[int]], tokens: int) -> Answer: ...


def options_of(weights: str) -> dict[str, str]:
    """Return a stage's options for a dtype or a quantization. One that rounds nothing has the activations of its weights' dtype."""
    if weights in DTYPES:
        return {"dtype": weights}
    return {"quantization": weights, **({"dtype": "bfloat16"} if weights == "bfloat16_lossless" else {})}


class Omni:
    """Our thinker's stage as the pipeline for text has it, which keeps nothing for a talker, with all kernels that its process would have;
    driven in this thread.
    """

    def __init__(self, checkpoint: Path, weights: str, threads: int, scratch: Path) -> None:
        import torch
        from engine import create_thinker

        from omni_core.plugins import load_plugins
        from omni_torch.operations.installed_kernels import install
        from omni_torch.operations.kernel_specs import kernel_specs

        torch.set_num_threads(threads)
        found = kernel_specs(load_plugins())
        install({name: [each for each in some if each.device == "cpu"] for name, some in found.items()})
        options = options_of(weights)
        self.stage = create_thinker(checkpoint, speech_enabled=False, prefix_cache=False, kv_cache_mb=512, **options)
        self.count = 0

    def generate(self, prompts: list[list[int]], tokens: int) -> Answer:
        import torch

        from omni_core.protocol.messages import OmniRequest, StagePayload
        from omni_core.scheduling.base import IncomingMessage

        params = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
        request, names = OmniRequest(params={"thinker": params}), []
        stage, ids = self.stage, {}
        watch = Watch()
        for prompt in prompts:
            inputs = {
                "input_ids": torch.tensor(prompt),
                "positions": torch.arange(len(prompt)).expand(3, -1),
                "position_delta": 0,
            }
            self.count += 1
            names.append(f"r{self.count}")
            payload = StagePayload(names[-1], request, inputs)
            stage.inbox.put(IncomingMessage(names[-1], "new_request", payload, None, None, request))
        begun: set[str] = set()

        def take() -> None:  # within a turn, so that an error ends it instead of a wait for more work
            for message in stage.outbox.drain():
                if message.type == "error":
                    raise message.data
                begun.add(message.request_id)
                if message.type == "result":
                    ids[message.request_id] = message.data["token_ids"]

        stage.outbox.on_put = take
        with torch.inference_mode():
            while len(begun) < len(prompts):
                stage.loop.turn()
            prefill, before = watch.look(), stage.tokens
            while not ids:
                stage.loop.turn()
            decode, decoded = watch.look(), stage.tokens - before
            while len(ids) < len(prompts):
                stage.loop.turn()
        return answer([ids[name] for name in names], prefill, decode, decoded)


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level functions: every step is one batch, sampled by its largest logit."""

    def __init__(self, checkpoint: Path, weights: str, threads: int, scratch: Path) -> None:
        import llama_cpp
        from peer_weights import write_gguf

        path = scratch / f"{weights}.gguf"
        if not path.exists():
            write_gguf(checkpoint, path, GGML_TYPES[weights])
        llama_cpp.llama_backend_init()
        self.api, self.threads, self.exact = llama_cpp, threads, weights == "float32"
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def _context(self, requests: int, positions: int) -> Any:
        api, params = self.api, self.api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = requests * (-(-positions // 256) * 256), requests
        params.n_batch = max(2048, requests * positions)
        params.n_threads = params.n_threads_batch = self.threads
        if self.exact:  # else keys and values are rounded to float16, and ids differ from transformers'
            params.type_k = params.type_v = api.GGML_TYPE_F32
            params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = api.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp cannot make a context")
        return context

    def generate(self, prompts: list[list[int]], tokens: int) -> Answer:
        import numpy as np

        api, count = self.api, len(prompts)
        context = self._context(count, max(map(len, prompts)) + tokens)
        batch = api.llama_batch_init(sum(map(len, prompts)), 0, count)
        made: list[list[int]] = [[] for _ in prompts]

        def step(parts: list[tuple[int, list[int]]]) -> None:
            """Compute some tokens of each request, from a position on, and sample one after them."""
            row, ends = 0, []
            for request, (begin, ids) in enumerate(parts):
                for offset, token in enumerate(ids):
                    batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, begin + offset, 1
                    batch.seq_id[row][0], batch.logits[row] = request, offset + 1 == len(ids)
                    row += 1
                ends.append(row - 1)
            batch.n_tokens = row
            if api.llama_decode(context, batch):
                raise RuntimeError("llama.cpp cannot decode the batch")
            for request, end in enumerate(ends):
                pointer = api.llama_get_logits_ith(context, end)
                made[request].append(int(np.ctypeslib.as_array(pointer, (self.vocabulary,)).argmax()))

        watch = Watch()
        step([(0, prompt) for prompt in prompts])
        prefill = watch.look()
        for number in range(1, tokens):
            step([(len(prompt) + number - 1, ids[-1:]) for prompt, ids in zip(prompts, made, strict=True)])
        decode = watch.look()
        api.llama_batch_free(batch)
        api.llama_free(context)
        return answer(made, prefill, decode, count * (tokens - 1))


class Vllm:
    """vLLM's engine in this process, compiled as it is by default."""

    def __init__(self, checkpoint: Path, weights: str, threads: int, scratch: Path) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS=str(threads)
        )  # fmt: skip
        from peer_weights import write_qwen3_moe
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        folder = scratch / "qwen3_moe"
        if not folder.exists():
            write_qwen3_moe(checkpoint, folder)
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder), dtype=weights, max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=4096,
                enable_prefix_caching=False, skip_tokenizer_init=True, seed=0,
            )
        )  # fmt: skip
        self.count = 0

    def generate(self, prompts: list[list[int]], tokens: int) -> Answer:
        from vllm import SamplingParams

        names, ids = [], {}
        watch = Watch()
        for prompt in prompts:
            self.count += 1
            names.append(f"r{self.count}")
            sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            self.engine.add_request(names[-1], {"prompt_token_ids": prompt}, sampling)
        ended: set[str] = set()

        def step() -> None:
            for output in self.engine.step():
                ids[output.request_id] = list(output.outputs[0].token_ids)
                if output.finished:
                    ended.add(output.request_id)

        while len(ids) < len(prompts):
            step()
        prefill, before = watch.look(), sum(map(len, ids.values()))
        while not ended:
            step()
        decode, decoded = watch.look(), sum(map(len, ids.values())) - before
        while len(ended) < len(prompts):
            step()
        return answer([ids[name] for name in names], prefill, decode, decoded)


ENGINES: dict[str, Callable[[Path, str, int, Path], Engine]] = {"omni": Omni, "llama.cpp": LlamaCpp, "vllm": Vllm}


def main() -> None:
    """Serve the parent until it closes standard input. Libraries print to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG: end with the parent
    engine: Engine | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if engine is None:
                made = ENGINES[asked["engine"]]
                engine = made(Path(asked["checkpoint"]), asked["weights"], asked["threads"], Path(asked["scratch"]))
                reply: Answer = {}
            else:
                reply = engine.generate(asked["prompts"], asked["tokens"])
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
