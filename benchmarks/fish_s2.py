"""Frames/s and real-time factor of our Fish S2 and of the reference implementation, and the time to first audio.

    python benchmarks/fish_s2.py [--quick] [--json FILE] [--checkpoint DIR] --fish-speech CHECKOUT --dac FOLDER

CHECKOUT and FOLDER: the reference and the package that its codec needs, as described in
``tests/omni_fish_s2/golden/make_golden.py``. Without them only ours is measured. Both sides run on one thread, sampled
with the same seed, on the same weights in float32; rounds alternate, and the codes must be equal. The reference answers
one request at a time, so eight requests are eight times one. Seconds are CPU time, except for the time to first audio:
with one thread CPU time equals wall time on an idle machine, and stays comparable on a shared one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import click
import numpy as np
import torch
from report import Row, alone, compare, json_option, publish, quick_option

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.assembly import assemble
from omni_fish_s2.codec.memory import StreamState
from omni_fish_s2.codec.weights import CodecFile
from omni_fish_s2.config import read_config
from omni_fish_s2.pipeline import fish_s2
from omni_fish_s2.prompt import PromptBuilder
from omni_fish_s2.vocoder import Vocoder
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint

CONCURRENT = 8
TEXT = "Once upon a time there was a red fox in a blue house, and the sound of the sea was in every room."
SEED = 3
FRAMES_PER_SECOND = 44_100 / 2048


class Reference:
    """fish-speech's decoders and codec."""

    def __init__(self, checkpoint: Path, fish_speech: Path, dac: Path) -> None:
        os.environ |= {"FISH_SPEECH": str(fish_speech), "DAC": str(dac)}
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "omni_fish_s2" / "golden"))
        import make_golden

        make_golden.prepare_imports()
        from fish_speech.models.text2semantic import inference
        from fish_speech.models.text2semantic.llama import DualARTransformer

        self._inference = inference
        self._model = DualARTransformer.from_pretrained(str(checkpoint), load_weights=True).eval()
        self._model._cache_setup_done = False
        file = checkpoint / "codec.pth"
        self._codec = make_golden.reference_codec(file, CodecFile(file).config)

    def speak(self, frames: int) -> tuple[float, np.ndarray]:
        """Seconds, and the codes ``[frames, codebooks]``."""
        torch.manual_seed(SEED)
        begin = time.process_time()
        with mock.patch.object(self._inference, "tqdm", lambda steps: steps):
            produced = self._inference.generate_long(
                model=self._model,
                device="cpu",
                decode_one_token=self._inference.decode_one_token_ar,
                text=TEXT,
                max_new_tokens=frames + 1,
            )
            codes = [each.codes for each in produced if each.action == "sample"]
        return time.process_time() - begin, torch.cat(codes, dim=1).T.numpy()

    @torch.inference_mode()
    def sound(self, codes: np.ndarray) -> float:
        """Seconds of decoding."""
        given = torch.from_numpy(codes.T.copy())[None]
        begin = time.process_time()
        self._codec.from_indices(given)
        return time.process_time() - begin


class Ours:
    """Our semantic_ar stage, driven through its scheduler, and our vocoder."""

    def __init__(self, checkpoint: Path) -> None:
        self._stage = assemble(
            "omni_fish_s2.semantic:SpeechRunner.from_checkpoint",
            "omni_torch.engine.scheduler:EngineScheduler",
            "omni_fish_s2.frame_feedback:FrameFeedback",
            model_path=str(checkpoint),
        )
        threading.Thread(target=self._stage.start, daemon=True).start()
        self._inputs = PromptBuilder(str(checkpoint), read_config(checkpoint)).build([TEXT], [])
        self._vocoder = Vocoder(str(checkpoint))
        self._count = 0

    def speak(self, frames: int, requests: int) -> tuple[float, np.ndarray]:
        """Seconds for all requests together, and the codes of one."""
        request = OmniRequest(params={"seed": SEED, "semantic": {"max_new_tokens": frames + 1}})
        self._count += 1
        names = [f"{self._count}-{index}" for index in range(requests)]
        begin, finished, codes = time.process_time(), 0, []
        for name in names:
            self._stage.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, request, self._inputs)))
        while finished < requests:
            message = self._stage.outbox.get()
            assert message is not None
            if message.type == "error":
                raise message.data
            finished += message.type == "result"
            if message.type == "stream" and message.request_id == names[0]:
                codes.append(message.data.numpy())
        return time.process_time() - begin, np.stack(codes)

    def sound(self, codes: np.ndarray, requests: int) -> float:
        """Return the seconds of decoding in the pieces that are streamed to a client: 4 frames, then 20 at a time."""
        frames = torch.from_numpy(codes)
        pieces = [frames[:4], *frames[4:].split(20)]
        streams = [StreamState() for _ in range(requests)]
        begin = time.process_time()
        for piece in pieces:
            self._vocoder.decode([(stream, piece) for stream in streams])
        return time.process_time() - begin


async def first_audio(checkpoint: Path, frames: int, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds to the first sound and to the end, through three processes, per round."""
    request = OmniRequest(
        {"messages": [{"role": "user", "content": TEXT}]}, {"seed": SEED, "semantic": {"max_new_tokens": frames + 1}}
    )
    times = []
    async with open_async(fish_s2(str(checkpoint))) as client:
        for _ in range(rounds + 1):
            begin, first = time.perf_counter(), 0.0
            async for event in client.stream(request):
                first = first or time.perf_counter() - begin
                assert not event.final or len(event.data.samples) == 2048 * frames
            times.append((first, time.perf_counter() - begin))
    return times[1:]


def measure(checkpoint: Path, reference: Reference | None, *, rounds: int, frames: int) -> list[Row]:
    """Interleaved rounds of every figure."""
    ours = Ours(checkpoint)
    ours.speak(4, CONCURRENT)
    figures: dict[str, tuple[list[float], list[float]]] = {}

    def note(name: str, mine: float, theirs: float | None) -> None:
        figures.setdefault(name, ([], []))[0].append(mine)
        if theirs is not None:
            figures[name][1].append(theirs)

    for _ in range(rounds):
        one, codes = ours.speak(frames, 1)
        many, _ = ours.speak(frames, CONCURRENT)
        sound, sounds = ours.sound(codes, 1), ours.sound(codes, CONCURRENT)
        spoken, heard = None, None
        if reference is not None:
            spoken, expected = reference.speak(frames)
            assert np.array_equal(codes, expected), "the two sides did not do the same work"
            heard = reference.sound(expected)
        length = frames / FRAMES_PER_SECOND
        note("codes, 1 request", frames / one, spoken and frames / spoken)
        note(f"codes, {CONCURRENT} requests", CONCURRENT * frames / many, spoken and frames / spoken)
        note("vocoder, 1 request", frames / sound, heard and frames / heard)
        note(f"vocoder, {CONCURRENT} requests", CONCURRENT * frames / sounds, heard and frames / heard)
        both = spoken + heard if spoken is not None and heard is not None else None
        note("times real time, 1 request", length / (one + sound), both and length / both)
        note(f"times real time, {CONCURRENT} requests", CONCURRENT * length / (many + sounds), both and length / both)
    rows = []
    for name, (mine, theirs) in figures.items():
        unit = "" if name.startswith("times") else "frames/s"
        rows.append(
            compare(name, unit, mine, theirs, "fish-speech", higher_is_better=True)
            if theirs
            else alone(name, unit, mine)
        )
    times = asyncio.run(first_audio(checkpoint, frames, rounds))
    rows.append(alone("first audio, 3 processes", "s", [first for first, _ in times]))
    rows.append(alone("first audio as a share of the total", "", [first / total for first, total in times]))
    return rows


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    help="Default: a random one of about 90 M parameters.",
)
@click.option("--fish-speech", type=click.Path(exists=True, path_type=Path), help="A checkout of the reference.")
@click.option("--dac", type=click.Path(exists=True, path_type=Path), help="descript-audio-codec 1.0.0, unzipped.")
def main(
    quick: bool, json_path: Path | None, checkpoint: Path | None, fish_speech: Path | None, dac: Path | None
) -> None:
    """Fish S2 against the reference implementation."""
    torch.set_num_threads(1)
    if (fish_speech is None) != (dac is None):
        raise click.UsageError("--fish-speech and --dac belong together")
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            checkpoint = write_tiny_checkpoint(Path(folder) / "mid", shape="mid")
        reference = Reference(checkpoint, fish_speech, dac) if fish_speech is not None and dac is not None else None
        rows = measure(checkpoint, reference, rounds=1 if quick else 5, frames=24 if quick else 64)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
