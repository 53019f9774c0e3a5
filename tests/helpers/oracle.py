"""The reference's answers: transformers' own processor and ``generate`` on the same checkpoint and the same files.

Run as a script in a process of its own (:class:`harness.Oracle` starts it), because it needs torchvision for the reference's video
processor, which none of our code may see. It reads jobs from stdin, a JSON object a line, and answers each with a line that has
the job's ``out``, and an ``error`` with the traceback if it failed. A job names a ``checkpoint`` and a path to write, ``out``: the
answers to its ``cases`` as ``.npz``, or without ``cases`` the reference's processor, saved by itself. torchvision comes from the
folder in ``OMNI_ORACLE_PACKAGES``; on a CPU build of torch it imports only after the schemas of two operators are defined.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback

import av
import numpy as np
import soundfile
import torch
from PIL import Image

_LIBRARY = torch.library.Library("torchvision", "DEF")


def load_torchvision() -> None:
    sys.path.append(os.environ["OMNI_ORACLE_PACKAGES"])
    _LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401


def _frames(path: str, step: float) -> np.ndarray:
    """The frames of a video, or with a ``step`` (in frames) the first at or after each multiple of it."""
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    if not step:
        return np.stack(frames)
    taken = [math.ceil(number * step - 1e-6) for number in range(len(frames))]
    return np.stack([frames[index] for index in taken if index < len(frames)])


def _sound(path: str) -> np.ndarray:
    with av.open(path) as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)]).astype(np.float32) / 32768


def _inputs(processor, case: dict) -> dict:
    """Processor inputs of one case: its chat in the reference's form and its media decoded."""
    images, audio, videos, from_video = [], [], [], []
    chat = []
    for message in case["messages"]:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        parts = []
        for part in content:
            kind = part["type"]
            parts.append(part if kind == "text" else {"type": kind})
            if kind == "image":
                images.append(Image.open(part["path"]).convert("RGB"))
            elif kind == "audio":
                audio.append(soundfile.read(part["path"], dtype="float32")[0])
            elif kind == "video":
                videos.append(_frames(part["path"], case.get("frame_step", 0.0)))
                if case.get("use_audio_in_video"):
                    from_video.append(len(audio))
                    audio.append(_sound(part["path"]))
        chat.append({"role": message["role"], "content": parts})
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    extra = {}
    if from_video:
        extra = {"load_audio_from_video": True, "audio_from_video_indices": from_video}
    return processor(
        text=text,
        images=images or None,
        audio=audio or None,
        videos=videos or None,
        videos_kwargs={"do_sample_frames": False, "fps": case.get("fps", 2.0)},
        return_tensors="pt",
        **extra,
    )


def load_processor(checkpoint: str):
    """The reference's processor, with PIL for images."""
    from transformers import AutoFeatureExtractor, AutoTokenizer, Qwen2VLVideoProcessor, Qwen3OmniMoeProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(checkpoint),
        video_processor=Qwen2VLVideoProcessor.from_pretrained(checkpoint),
        feature_extractor=AutoFeatureExtractor.from_pretrained(checkpoint),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        chat_template=AutoTokenizer.from_pretrained(checkpoint).chat_template,
    )


class Dictated:
    """Lets the thinker write these ids after its prompt; a logits processor."""

    def __init__(self, prompt: int, ids: list[int]) -> None:
        self.prompt, self.ids = prompt, ids

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = torch.full_like(scores, -torch.inf)
        scores[:, self.ids[input_ids.shape[1] - self.prompt]] = 0
        return scores


def answer(checkpoint: str, cases: dict, out: str) -> None:
    """Write ``{case}.prompt``, ``{case}.ids`` and ``{case}.wave`` of every case."""
    from transformers import Qwen3OmniMoeForConditionalGeneration

    processor = load_processor(checkpoint)
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    # The reference's rope index reads a field that the talker's config lacks when audio meets images or video.
    model.talker.config.audio_config = model.config.thinker_config.audio_config
    answers = {}
    for name, case in cases.items():
        inputs = _inputs(processor, case)
        torch.manual_seed(0)
        forced = {}
        if "aloud" in case:
            text = [*processor.tokenizer.encode(case["aloud"]), processor.tokenizer.convert_tokens_to_ids("<|im_end|>")]
            forced = {"thinker_logits_processor": [Dictated(inputs["input_ids"].shape[1], text)]}
        ids, wave = model.generate(
            **inputs,
            **forced,
            return_audio=True,
            speaker=case.get("speaker", "Ethan"),
            use_audio_in_video=bool(case.get("use_audio_in_video")),
            thinker_eos_token_id=processor.tokenizer.convert_tokens_to_ids("<|im_end|>"),
            thinker_do_sample=False,
            talker_do_sample=False,
            thinker_max_new_tokens=case["thinker_max_new_tokens"],
            talker_max_new_tokens=case["talker_max_new_tokens"],
        )
        ids = ids.sequences if hasattr(ids, "sequences") else ids
        answers[f"{name}.prompt"] = inputs["input_ids"][0].numpy()
        answers[f"{name}.ids"] = ids[0, inputs["input_ids"].shape[1] :].numpy()
        answers[f"{name}.wave"] = wave.reshape(-1).float().numpy()
    np.savez(out, **answers)


def main() -> None:
    """Serve jobs until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print too
    load_torchvision()
    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        reply = {"out": job["out"]}
        try:
            if "cases" in job:
                answer(**job)
            else:
                load_processor(job["checkpoint"]).save_pretrained(job["out"])
        except Exception:
            reply["error"] = traceback.format_exc()
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
