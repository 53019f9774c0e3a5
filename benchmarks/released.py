"""Qwen3-Omni at its released dimensions with random bfloat16 weights on one GPU: step times compared with the memory
bandwidth.

    python benchmarks/released.py [--quick] [--json FILE] [--decode-only] [--dimensions released|mid|a] [--no-kernels] [--device cuda:0]
        [--quantization float8_weight_only]

Thinker, talker and code2wav run as in a pipeline, on threads of this process, which forwards their streams itself. The
weights are made where they are used: no 60 GB are written. A decode step must read every weight that it uses and the
keys and values of its requests; the other side is the rate at which this device copies memory (read and written bytes),
measured between the rounds. This is given for one request, whose number of experts is known: those of several with random weights
coincide more often than chance has it. Without a GPU the ``a`` dimensions run, which tests the benchmark and says nothing
about speed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from attrs import define, field
from engine import opening
from report import Row, alone, compare, json_option, publish, quick_option
from safetensors.torch import save_file
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_qwen3.code2wav import Vocoder, create_code2wav
from omni_qwen3.config import DecoderConfig, QwenConfig, parse_config
from omni_qwen3.talker import TalkerRunner
from omni_qwen3.talker_feedback import TalkerFeedback
from omni_qwen3.talker_network import Talker
from omni_qwen3.thinker import ThinkerRunner
from omni_qwen3.thinker_network import Thinker
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.engine.scheduler import EngineScheduler
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.quantization.packed_linear import pack_linears
from omni_torch.quantization.quantized_linear import quantize_for
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))
from released import RELEASED


def config_document(name: str) -> dict[str, Any]:
    """A ``config.json``."""
    if name == "released":
        return RELEASED
    with tempfile.TemporaryDirectory() as folder:
        text = (write_tiny_checkpoint(Path(folder) / name, shape=name) / "config.json").read_text()
    document: dict[str, Any] = json.loads(text)
    return document


def drawn(module: nn.Module, device: torch.device) -> nn.Module:
    """Return ``module``, built on meta, with bfloat16 weights on ``device``: norms are ones, matrices keep a vector's
    length.
    """
    module = module.to(torch.bfloat16).to_empty(device=device).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return module


def narrow(model: nn.Module, quantization: str | None, device: torch.device) -> nn.Module:
    """Return a network with the layers of a scheme, made where its weights are: a GPU holds the wide ones, too, for that."""
    pack_linears(model, quantize_for(quantization, str(device)))
    return model


def vocoder_checkpoint(folder: Path, raw: dict[str, Any]) -> Path:
    """Write a checkpoint with the vocoder's tensors alone."""
    network = Qwen3OmniMoeCode2Wav._from_config(Qwen3OmniMoeCode2WavConfig(**raw["code2wav_config"]))
    tensors = {f"code2wav.{name}": each.to(torch.bfloat16).contiguous() for name, each in network.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@define(eq=False)
class Spoken:
    """The outputs of one request, and their times (seconds since its group was submitted)."""

    first_text: float = 0.0
    first_audio: float = 0.0
    text: float = 0.0
    speech: float = 0.0
    sound: float = 0.0
    frames: int = 0
    samples: int = 0
    ended: threading.Event = field(factory=threading.Event)


class Pipeline:
    """Thinker, talker and code2wav on one device."""

    def __init__(
        self, raw: dict[str, Any], device: torch.device, folder: Path, kv_cache_mb: int, quantization: str | None = None
    ) -> None:
        self.config: QwenConfig = parse_config(raw)
        self.device, self.weight_bytes = device, 2 if quantization is None else 1
        with torch.device("meta"):
            thinker, talker = Thinker(self.config.thinker), Talker(self.config.talker)
        place, width = str(device), self.config.thinker.hidden_size
        special = torch.randn(3, width, dtype=torch.bfloat16) * width**-0.5
        first, second = (narrow(drawn(each, device), quantization, device) for each in (thinker, talker))
        runner = ThinkerRunner(first, self.config, speech_enabled=True, device=place)  # type: ignore[arg-type]
        speaker = TalkerRunner(second, self.config, special, TalkerFeedback(), place)  # type: ignore[arg-type]
        options = {"prefix_cache": False, "kv_cache_mb": kv_cache_mb}
        self.thinker = EngineScheduler(runner, **options)  # type: ignore[arg-type]
        self.talker = EngineScheduler(speaker, **options)  # type: ignore[arg-type]
        self.code2wav = create_code2wav(str(vocoder_checkpoint(folder, raw)), device=place, dtype="bfloat16")
        self._stages: list[Scheduler] = [self.thinker, self.talker, self.code2wav]
        self._spoken: dict[str, Spoken] = {}
        self._requests: dict[str, OmniRequest] = {}
        self._begin, self._count = 0.0, 0
        self.failure: BaseException | None = None
        for stage, handler in zip(
            self._stages, (self._from_thinker, self._from_talker, self._from_code2wav), strict=True
        ):
            stage.outbox.on_put = self._reader(stage, handler)
        self._threads = [threading.Thread(target=stage.start, daemon=True) for stage in self._stages]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for stage, thread in zip(self._stages, self._threads, strict=True):
            stage.stop()
            thread.join(10)

    def speak(self, prompts: list[torch.Tensor], tokens: int, frames: int) -> list[Spoken]:
        """Serve the prompts together: ``tokens`` of text and ``frames`` of speech each."""
        modalities = ["text", "audio"] if frames else ["text"]
        names = [f"r{self._count + index}" for index in range(len(prompts))]
        self._count += len(prompts)
        self._spoken = {name: Spoken() for name in names}
        silent = list({self.config.talker.codec_eos})
        params = {
            "thinker": {"max_new_tokens": tokens, "ignore_eos": True},
            "talker": {"max_new_tokens": frames + 1, "suppressed_ids": silent},
        }
        self._requests = {name: OmniRequest(params=params, modalities=modalities) for name in names}
        self._begin = time.perf_counter()
        for name, prompt in zip(names, prompts, strict=True):
            positions = torch.arange(len(prompt)).expand(3, -1)
            data = {"input_ids": prompt, "positions": positions, "position_delta": 0}
            self._send(self.thinker, name, "new_request", StagePayload(name, self._requests[name], data))
        for each in self._spoken.values():
            while not each.ended.wait(0.2) and self.failure is None:
                continue
        if self.failure is not None:
            raise self.failure
        return list(self._spoken.values())

    def _send(self, stage: Scheduler, name: str, kind: Any, data: Any = None, source: str | None = None) -> None:
        stage.inbox.put(IncomingMessage(name, kind, data, source, None, self._requests[name]))

    def _reader(self, stage: Scheduler, handler: Any) -> Any:
        def read() -> None:
            for message in stage.outbox.drain():
                if message.type == "error":
                    self.failure = message.data
                else:
                    handler(message, self._spoken[message.request_id], time.perf_counter() - self._begin)

        return read

    def _from_thinker(self, message: OutgoingMessage, spoken: Spoken, now: float) -> None:
        if message.target == "decode":
            spoken.first_text = spoken.first_text or now
        elif message.target == "talker_ar":
            self._send(self.talker, message.request_id, "stream_chunk", message.data, "thinker")
        elif message.type == "result":
            spoken.text = now
            if "audio" in self._requests[message.request_id].modalities:
                self._send(self.talker, message.request_id, "stream_done", None, "thinker")
            else:
                spoken.ended.set()

    def _from_talker(self, message: OutgoingMessage, spoken: Spoken, now: float) -> None:
        name = message.request_id
        if message.type == "stream":
            spoken.frames += 1
            self._send(self.code2wav, name, "stream_chunk", message.data, "talker_ar")
        else:
            spoken.speech = now
            payload = StagePayload(name, self._requests[name], message.data)
            self._send(self.code2wav, name, "new_request", payload, "talker_ar")
            self._send(self.code2wav, name, "stream_done", None, "talker_ar")

    def _from_code2wav(self, message: OutgoingMessage, spoken: Spoken, now: float) -> None:
        if message.type == "stream":
            spoken.first_audio = spoken.first_audio or now
            spoken.samples += len(message.data.samples)
        else:
            spoken.sound = now
            spoken.ended.set()


def bytes_of_a_step(config: DecoderConfig, context: int, size: int, weight_bytes: int) -> float:
    """Return the bytes that a decode step of one request reads: weights, those of its experts, keys and values. Routers and caches take
    ``size`` bytes a value, other weights ``weight_bytes``.
    """
    attention = 2 * (config.heads + config.kv_heads) * config.head_dim * config.hidden_size
    dense = 3 * config.hidden_size * (config.shared_expert_size if config.experts else config.intermediate_size)
    experts = config.experts_per_token * 3 * config.moe_intermediate_size * config.hidden_size if config.experts else 0
    router = config.experts * config.hidden_size
    cache = context * 2 * config.kv_heads * config.head_dim
    weights = config.layers * (attention + dense + experts) + config.vocab_size * config.hidden_size
    return weight_bytes * weights + size * config.layers * (router + cache)


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes read and written per second by a large copy on ``device``: the best of five."""
    source = torch.empty((1 << 30) if device.type == "cuda" else (1 << 26), dtype=torch.uint8, device=device)
    target, best = torch.empty_like(source), 0.0
    for _ in range(5):
        with settled(device):
            begin = time.perf_counter()
            target.copy_(source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - begin))
    return best


@contextmanager
def settled(device: torch.device) -> Iterator[None]:
    """Synchronise ``device`` before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(pipeline: Pipeline, *, rounds: int, tokens: int, frames: int, length: int) -> Iterator[Row]:
    """Measure decoding and, with ``frames``, speech and first answers at 1, 8 and 32 requests."""
    config = pipeline.config.thinker
    for requests in (1, 8, 32):
        prompts = [opening(pipeline.config, length, seed)[0] for seed in range(requests)]
        pipeline.speak(prompts, 4, min(frames, 4))  # warms up
        rate, read, ceiling, speech, factor, text, audio = ([] for _ in range(7))  # type: ignore[var-annotated]
        for _ in range(rounds):
            # The time of decoding alone: the difference between more and fewer tokens.
            long, short = (
                max(each.text for each in pipeline.speak(prompts, count, 0)) for count in (tokens, tokens // 4)
            )
            steps = tokens - tokens // 4
            rate.append(requests * steps / (long - short))
            context = length + 6 + tokens * 5 // 8
            read.append(bytes_of_a_step(config, context, 2, pipeline.weight_bytes) * steps / (long - short) / 1e9)
            ceiling.append(copy_bandwidth(pipeline.device) / 1e9)
            if frames:
                spoken = pipeline.speak(prompts, tokens, frames)
                speech.append(sum(each.frames for each in spoken) / max(each.speech for each in spoken))
                factor.append(max(each.sound / (each.samples / Vocoder.sample_rate) for each in spoken))
                text.append(1e3 * max(each.first_text for each in spoken))
                audio.append(1e3 * max(each.first_audio for each in spoken))
        named = f"{requests} requests" if requests > 1 else "1 request"
        yield alone(f"thinker, {named}", "tokens/s", rate)
        if requests == 1:
            yield compare(
                f"thinker reads while decoding, {named}", "GB/s", read, ceiling, "copy", higher_is_better=True
            )
        if frames:
            yield alone(f"talker beside thinker and code2wav, {named}", "frames/s", speech)
            yield alone(f"real-time factor, the slowest of {named}", "s/s", factor)
            yield alone(f"first text, the last of {named}", "ms", text)
            yield alone(f"first audio, the last of {named}", "ms", audio)


@click.command()
@quick_option
@json_option
@click.option("--dimensions", type=click.Choice(["released", "mid", "a"]), help="Default: released on a GPU, else a.")
@click.option("--decode-only", is_flag=True, help="Leave out speech and first answers.")
@click.option("--kernels/--no-kernels", default=True, help="Use installed kernels in place of PyTorch's operations.")
@click.option("--device", help="Default: the first GPU, else the CPU.")
@click.option("--quantization", type=click.Choice(sorted(GPU_QUANTIZATIONS)), help="Of thinker and talker.")
def main(
    quick: bool,
    json_path: Path | None,
    dimensions: str | None,
    decode_only: bool,
    kernels: bool,
    device: str | None,
    quantization: str | None,
) -> None:
    """Qwen3-Omni at its released dimensions."""
    place = torch.device(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    chosen = dimensions or ("released" if place.type == "cuda" else "a")
    if place.type == "cpu":
        torch.set_num_threads(1)
    click.echo(
        f"dimensions {chosen}, {quantization or 'bfloat16'}, on {place if place.type == 'cpu' else torch.cuda.get_device_name(place)}"
    )
    installed = kernel_specs(load_plugins()) if kernels else {}
    install(installed)
    usable = sorted(name for name, specs in installed.items() if any(spec.device == place.type for spec in specs))
    click.echo(f"kernels for this device: {', '.join(usable) or 'none'}")
    rounds, tokens, frames = (1, 32, 16) if quick else (5, 128, 64)
    with tempfile.TemporaryDirectory() as folder:
        raw = config_document(chosen)
        cache = 4096 if place.type == "cuda" else 64
        pipeline = Pipeline(raw, place, Path(folder), cache, quantization)
        rows: list[Row] = []
        try:
            for row in measure(pipeline, rounds=rounds, tokens=tokens, frames=0 if decode_only else frames, length=128):
                rows.append(row)
        finally:  # what is measured is kept if it is interrupted
            pipeline.stop()
            publish(rows, json_path)


if __name__ == "__main__":
    main()
