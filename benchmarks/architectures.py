"""One request by omni-transformers beside the model's own call in transformers, for every architecture: CPU time, in turns, in one process.

    OMP_NUM_THREADS=1 python benchmarks/architectures.py [--quick] [--json FILE] [--rounds 5] [--only NAME]

The tiny checkpoints of the tests show what each token costs beside the network, and nothing else: their networks are nearly free. Those of
realistic sizes, made here with random weights (:mod:`larger`), show what users see. A request goes through the stages of its pipeline,
without processes between them; both sides read the request, generate and write the text. ``--quick`` takes every 20th tiny one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import larger
import torch
import transformers
from attrs import evolve, frozen
from report import Row, compare, json_option, publish, quick_option
from tiny_transformers import (
    MAKERS,
    causal,
    checkpoint,
    examples,
    further_seers,
    late_seers,
    listeners,
    omnis,
    recognisers,
    seers,
    speakers,
    writers,
)
from tiny_transformers.driving import replies, running
from tiny_transformers.heard import SAY
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE, loaded, written

from omni_core.api import OmniRequest, StagePayload, load
from omni_core.plugins import load_plugins
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_transformers.architectures import table
from omni_transformers.loading import load_model, load_processor
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.words.messages import rate_of
from omni_transformers.words.recognisers import RECOGNISERS

assert all((further_seers, late_seers, listeners, omnis, recognisers, seers, speakers, writers))

Call = Callable[[], object]
TEXT = {"type": "text", "text": "What?"}
TOKENS = 32
"""Of an answer."""


@frozen
class Sized:
    """A realistic size: the architecture, and the changed fields of its config."""

    architecture: str
    sizes: dict[str, Any]


def _layers(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads, **more}


SIZED = [
    Sized("LlamaForCausalLM", _layers(768, 10, 12)),
    Sized(
        "LlavaForConditionalGeneration",
        {
            "text_config": _layers(640, 10, 10, layer_types=None),
            "vision_config": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6},
        },
    ),
    Sized("MambaForCausalLM", {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 16}),
    Sized(
        "T5ForConditionalGeneration",
        {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8},
    ),
    Sized(
        "MoonshineForConditionalGeneration",
        {"hidden_size": 416, "intermediate_size": 1664, "encoder_num_hidden_layers": 8, "decoder_num_hidden_layers": 8,
         "encoder_num_attention_heads": 8, "decoder_num_attention_heads": 8,
         "encoder_num_key_value_heads": 8, "decoder_num_key_value_heads": 8, "initializer_range": 0.05},
    ),
    Sized("Wav2Vec2ForCTC", {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}),
    Sized(
        "VitsModel",
        {
            "hidden_size": 192, "flow_size": 192, "ffn_dim": 768, "num_hidden_layers": 6, "prior_encoder_num_wavenet_layers": 4,
            "spectrogram_bins": 513, "upsample_initial_channel": 512, "upsample_rates": [8, 8, 2, 2],
            "upsample_kernel_sizes": [16, 16, 4, 4],
            "resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        },
    ),
]  # fmt: skip


def timed(call: Call) -> float:
    """Return the CPU milliseconds of a call, over all threads."""
    begin = time.process_time()
    call()
    return 1000 * (time.process_time() - begin)


def through_stages(folder: Path, request: OmniRequest, until: ExitStack) -> Call:
    """Return a call that sends a request through the stages of a checkpoint's pipeline."""
    stages: list[Any] = []
    for stage in pipeline(str(folder)).stages:
        assert stage.factory is not None
        made = load(stage.factory)(str(folder), **stage.factory_args)
        stages.append(until.enter_context(running(made)) if hasattr(made, "inbox") else made)

    def call() -> None:
        payload = StagePayload("0", request)
        for stage in stages:
            if hasattr(stage, "inbox"):
                [(_, result)] = replies(stage, [payload])
            else:
                result = stage(payload)
            payload = evolve(payload, data=result)

    return call


def both(name: str, folder: Path, seconds: float, until: ExitStack) -> tuple[Call, Call]:
    """Return our call and transformers' own for one request."""
    kind = table()[name].kind
    own: Any = getattr(transformers, name)
    if kind == "speak":
        request = OmniRequest({"messages": [{"role": "user", "content": "Hello there."}]}, {"speech": {"seed": 3}})
        say = SAY[name](own.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder), folder)
        return through_stages(folder, request, until), lambda: (torch.manual_seed(3), say("Hello there."))
    if kind == "recognise":
        given = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
        samples = tone(seconds)
        model, processor = loaded(name, folder)
        return through_stages(folder, hear(samples, **given), until), lambda: written(name, model, processor, samples)
    model, processor = own.from_pretrained(folder).eval(), load_processor(str(folder))
    if name in RECOGNISERS:
        part = examples.part("audio", 0, rate_of(processor))
        ours = through_stages(folder, examples.asked([part]), until)
        return ours, lambda: examples.transcript_ids(name, model, processor, part["samples"], TOKENS)
    medium = next((each for each in table()[name].inputs if each != "text"), None)
    text = {**TEXT, "text": examples.TEXTS.get(name, TEXT["text"])}
    content = [text] if medium is None else [examples.part(medium, 0, rate_of(processor)), text]
    ours = through_stages(folder, examples.asked(content), until)
    return ours, lambda: examples.generated(name, model, processor, content)


def measured(name: str, title: str, folder: Path, seconds: float, rounds: int) -> Row:
    """Compute one request by both, in turns."""
    with ExitStack() as until, torch.inference_mode():
        calls = both(name, folder, seconds, until)
        for call in calls:
            call()
        times = [[timed(call) for call in calls] for _ in range(rounds)]
    load_model.cache_clear()
    load_processor.cache_clear()
    ours, its = zip(*times, strict=True)
    return compare(title, "CPU ms", ours, its, "its own call", higher_is_better=False)


def sized(rounds: int, only: str, quick: bool) -> Iterator[Row]:
    """Yield the rows of realistic sizes."""
    for each in SIZED[::3] if quick else SIZED:
        if not each.architecture.startswith(only):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            kind: Any = getattr(transformers, each.architecture)
            tiny = checkpoint(each.architecture)
            count = larger.grown(kind, tiny, each.sizes, Path(scratch), change=lambda model: model)
            title = f"{each.architecture}, {count / 1e6:.0f} M"
            yield measured(each.architecture, title, Path(scratch), 10.0, rounds)


@click.command()
@quick_option
@json_option
@click.option("--rounds", default=5)
@click.option("--only", default="", help="The beginning of an architecture's name.")
def main(quick: bool, json_path: Path | None, rounds: int, only: str) -> None:
    """Measure each architecture, the realistic sizes first."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    examples.TOKENS = TOKENS
    specs = kernel_specs(load_plugins())
    install({name: [each for each in some if each.device == "cpu"] for name, some in specs.items()})
    names = [name for name in dict.fromkeys([*MAKERS, *causal.CONFIGS]) if name.startswith(only)]
    large = list(sized(1 if quick else rounds, only, quick))
    small = []
    for name in names[::20] if quick else names:
        folder = checkpoint(name) if name in MAKERS else causal.checkpoint(name)
        small.append(measured(name, name, folder, 1.5, 2 if quick else rounds))
    small.sort(key=lambda row: row.ratio or 0)
    publish([*large, *small], json_path)
    for kind in ("speak", "recognise", "words"):
        ratios = [row.ratio for row in small if row.ratio and table()[row.name].kind == kind]
        if ratios:
            click.echo(
                f"{kind}: {len(ratios)} tiny ones, median {statistics.median(ratios):.2f}, worst {min(ratios):.2f}"
            )


if __name__ == "__main__":
    main()
