"""The declared interface of the Fish S2 pipeline: speech parameters, voice cloning and limits. Imports no torch."""

from __future__ import annotations

from omni_core.api import SEED, SPEECH, VOCODER, Interface, Parameter, ParameterGroup

ARCHITECTURES = ("fish_qwen3_omni",)

OPTIONS = {
    "processes": "'separate' (a process per stage, the default) or 'one' (all stages in one process)",
    "dtype": "weights of every stage: auto (default: the checkpoint's; on a CPU without bfloat16 float32), float32, bfloat16, float16",
    "gpu": "auto (default: the GPUs of this machine, if there are any), the number of one for every stage, or none",
    "initial_chunk": "frames (46 ms each) in the first piece of sound",
    "chunk": "frames in a later piece of sound, at most: each has as many as all before it (`growth` of the vocoder)",
    "segment_bytes": "maximum size of a segment, in bytes; longer texts are split at sentences",
    "max_characters": "maximum length of a text, in characters",
    "max_reference_seconds": "maximum length of a recording of a voice, in seconds",
    "voices_kept": "size of the cache of encoded voices",
    "max_context": "maximum number of positions, text and speech together",
}
"""The pipeline's options, each with the line that ``omni pipelines`` prints."""

IMPORTS = {
    "pipeline": "S2ProPipelineConfig FishQwen3OmniForCausalLM",
    "codec_chunk_frames": "vocoder.factory_args.chunk",
    "initial_codec_chunk_frames": "vocoder.factory_args.initial_chunk",
    "codec_left_context_frames: *": "the vocoder keeps its state, so everything before a piece is its context",
    "codec_streaming: true": "codes go to the vocoder frame by frame",
    "fish_speech_tensor_codes: true": "codes travel as tensors",
    "fish_speech_single_initial_chunk: true": "a later piece has as many frames as all before it, up to chunk",
    "fish_speech_backlog_codec_chunk_frames": "pieces have the same sizes under load, and are decoded in batches",
    "fish_speech_backlog_load_threshold": "pieces have the same sizes under load, and are decoded in batches",
    "fish_speech_dac_dtype": "vocoder.factory_args.dtype",
    "fish_speech_dac_max_padded_frames": "pieces are batched without padding",
    "fish_speech_dac_max_batch: 0": "the vocoder decodes every request that has a whole piece, up to max_running",
    "stages.tts_engine": "semantic_ar",
}
"""The places here of keys in other systems' deploy files; see :data:`omni_core.services.IMPORTS`."""

SEMANTIC = ParameterGroup(
    "semantic",
    SPEECH,
    "how the speech is chosen",
    [
        Parameter("temperature", "number", "sampling temperature; 0 is greedy", 1.0, minimum=0, maximum=2),
        Parameter(
            "top_p", "number", "nucleus sampling: keep this probability mass; 1 is off", 0.9, minimum=1e-6, maximum=1
        ),
        Parameter("top_k", "integer", "keep the k most likely; 0 is off", 30, minimum=0, maximum=2**31 - 1),
        Parameter(
            "max_new_tokens",
            "integer",
            "maximum number of frames (46 ms each) per turn",
            2048,
            1,
            2**31 - 1,
            aliases=["max_tokens"],
        ),
        Parameter(SEED, "integer", "sampling seed; random by default", minimum=0, maximum=2**63 - 1),
    ],
)

INTERFACE = Interface(
    roles={SPEECH: "semantic_ar", VOCODER: "vocoder"},
    inputs=["text", "reference"],
    input_streams=["text"],
    outputs=["audio"],
    groups=[SEMANTIC],
    params=[Parameter("return_codes", "boolean", "return the codes beside the sound", False)],
    metadata=[
        Parameter("speaker", "string", "the voice: the number of a recording, from 0"),
        Parameter("priority", "integer", "requests of a higher priority are served first", 0, -1000, 1000),
        Parameter(
            "first_within", "number", "seconds in which the first sound is wanted, by stages with a policy", None, 0
        ),
    ],
    limits={"max_characters": 10_000, "max_reference_seconds": 60.0, "min_reference_seconds": 0.05},
    voices_from="the recordings in the request's references",
    sample_rate=44_100,
    reference_text=True,
    warmup=[
        {
            "inputs": {"messages": [{"role": "user", "content": "Hello."}]},
            "params": {"semantic": {"max_new_tokens": 16}},
        }
    ],
)
