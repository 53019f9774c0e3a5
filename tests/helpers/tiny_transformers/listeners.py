"""Models that write text of sound."""

from __future__ import annotations

from pathlib import Path

import transformers as T

from tiny_transformers import maker
from tiny_transformers.tiny import save, tokenizer_of


def heard(
    name: str,
    processor: str,
    sound: object,
    mark: str,
    named: dict[str, str] | None = None,
    more: tuple[str, ...] = (),
    sizes: dict[str, object] | None = None,
    ids: dict[str, object] | None = None,
    template: bool = True,
    part: str = "feature_extractor",
    parts: dict[str, object] | None = None,
    **settings: object,
) -> None:
    """Register the maker of an architecture; see :func:`tiny_transformers.seers.seen`."""

    @maker(name)
    def make(folder: Path) -> None:
        marks = {
            "audio": mark,
            "image": (named or {}).get("image_token", ""),
            "video": (named or {}).get("video_token", ""),
        }
        tokenizer = tokenizer_of(marks if template else None, *more, **(named or {}))
        given: dict[str, object] = {part: sound, "tokenizer": tokenizer, **(parts or {}), **settings}
        if template:
            given["chat_template"] = tokenizer.chat_template
        save(folder, name, getattr(T, processor)(**given), sizes, ids)


def whisper(**settings: object) -> object:
    return T.WhisperFeatureExtractor(**{"feature_size": 16, "chunk_length": 2, **settings})


MELS = {"num_mel_bins": 16, "max_source_positions": 100}
AUDIO = {"audio_token": "<|AUDIO|>"}
AUDIO_ID = {"audio_token_id": "<|AUDIO|>", "audio_token_index": "<|AUDIO|>"}

GRANITE = {
    "encoder_hidden_size": 32,
    "hidden_dim": 32,
    "projector_config": {"encoder_hidden_size": 32, "cross_attention_frequency": 1},
    "conv_kernel_size": 5,
    "output_dim": 8,
}
heard(
    "Qwen2AudioForConditionalGeneration",
    "Qwen2AudioProcessor",
    whisper(),
    "<|audio_bos|><|AUDIO|><|audio_eos|>",
    AUDIO,
    ("<|audio_bos|>", "<|audio_eos|>"),
    MELS,
    AUDIO_ID,
)
heard(
    "AudioFlamingo3ForConditionalGeneration",
    "AudioFlamingo3Processor",
    whisper(),
    "<sound>",
    None,
    ("<sound>",),
    MELS,
    {"audio_token_id": "<sound>"},
    max_audio_len=60,
)
heard(
    "MusicFlamingoForConditionalGeneration",
    "MusicFlamingoProcessor",
    whisper(),
    "<sound>",
    None,
    ("<sound>", "<|sound_bos|>", "<|sound_eos|>"),
    MELS,
    {"audio_token_id": "<sound>", "audio_bos_token_id": "<|sound_bos|>", "audio_eos_token_id": "<|sound_eos|>"},
    max_audio_len=60,
)
heard(
    "GlmAsrForConditionalGeneration",
    "GlmAsrProcessor",
    whisper(),
    "<|begin_of_audio|><|pad|><|end_of_audio|>",
    None,
    ("<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>"),
    {**MELS, "max_position_embeddings": 500},
    {"audio_token_id": "<|pad|>"},
    max_audio_len=60,
)
heard(
    "Qwen3ASRForConditionalGeneration",
    "Qwen3ASRProcessor",
    T.Qwen3ASRFeatureExtractor(feature_size=16),
    "<|audio_start|><|audio_pad|><|audio_end|>",
    {"audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"},
    ("<asr_text>",),
    {**MELS, "output_dim": 32, "downsample_hidden_size": 16, "n_window": 50},
    {"audio_token_id": "<|audio_pad|>"},
)
heard(
    "FunAsrNanoForConditionalGeneration",
    "FunAsrNanoProcessor",
    T.FunAsrNanoFeatureExtractor(feature_size=16),
    "<|object_ref_start|>",
    None,
    ("<|object_ref_start|>",),
    {
        **MELS,
        "num_timestamp_prediction_layers": 1,
        "max_position_embeddings": 500,
        "adaptor_config": {"intermediate_size": 8},
    },
    {"audio_token_id": "<|object_ref_start|>"},
)
heard(
    "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechProcessor",
    T.GraniteSpeechFeatureExtractor(),
    "<|audio|>",
    None,
    ("<|audio|>",),
    GRANITE,
    {"audio_token_id": "<|audio|>", "audio_token_index": "<|audio|>"},
    part="audio_processor",
)
heard(
    "MossTranscribeDiarizeForConditionalGeneration",
    "MossTranscribeDiarizeProcessor",
    T.MossTranscribeDiarizeFeatureExtractor(feature_size=16, chunk_length=2),
    "<|audio_start|><|audio_pad|><|audio_end|>",
    None,
    ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"),
    MELS,
    {"audio_token_id": "<|audio_pad|>"},
)
heard(
    "VibeVoiceAsrForConditionalGeneration",
    "VibeVoiceAsrProcessor",
    T.VibeVoiceAcousticTokenizerFeatureExtractor(),
    "<|object_ref_start|><|box_start|><|object_ref_end|>",
    None,
    ("<|box_start|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|AUDIO_DURATION|>"),
    {"hidden_size": 32, "num_filters": 4, "depths": [1] * 7, "_own": ("depths",)},
    {
        "audio_token_id": "<|box_start|>",
        "audio_bos_token_id": "<|object_ref_start|>",
        "audio_eos_token_id": "<|object_ref_end|>",
    },
)
heard(
    "GraniteSpeechPlusForConditionalGeneration",
    "GraniteSpeechProcessor",
    T.GraniteSpeechFeatureExtractor(),
    "<|audio|>",
    None,
    ("<|audio|>",),
    GRANITE,
    {"audio_token_id": "<|audio|>", "audio_token_index": "<|audio|>"},
    part="audio_processor",
)
heard(
    "Phi4MultimodalForCausalLM",
    "Phi4MultimodalProcessor",
    T.Phi4MultimodalFeatureExtractor(),
    "<|audio|>",
    {"image_token": "<|image|>", "audio_token": "<|audio|>"},
    (),
    {
        "num_blocks": 2,
        "ext_pw_out_channel": 32,
        "depthwise_separable_out_channel": 32,
        "nemo_conv_channels": 32,
        "image_size": 448,
        "crop_size": 448,
        "original_max_position_embeddings": 4096,
        "vision_config": {"num_hidden_layers": 3},
        "audio_config": {},
    },
    {"image_token_id": "<|image|>", "audio_token_id": "<|audio|>"},
    part="audio_processor",
    parts={"image_processor": T.Phi4MultimodalImageProcessor(dynamic_hd=1)},
)


@maker("Nemotron3_5TranscribeForConditionalGeneration")
def nemotron_transcribe(folder: Path) -> None:
    tokenizer, words = tokenizer_of({"audio": "<|audio|>"}, "<|audio|>"), tokenizer_of(None)
    made = T.Nemotron3_5TranscribeProcessor(
        T.ParakeetFeatureExtractor(feature_size=16), tokenizer, words, chat_template=tokenizer.chat_template
    )
    save(
        folder,
        "Nemotron3_5TranscribeForConditionalGeneration",
        made,
        {
            "num_mel_bins": 16,
            "audio_hidden_size": 32,
            "max_position_embeddings": 500,
            "num_key_value_heads": 4,
            "blank_token_id": 319,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 2,
        },
        {"audio_token_id": "<|audio|>"},
    )


@maker("VoxtralForConditionalGeneration")
def voxtral(folder: Path) -> None:
    tokens = (
        "[INST]",
        "[/INST]",
        "[BEGIN_AUDIO]",
        "[TRANSCRIBE]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    )
    made = T.VoxtralProcessor(
        whisper(), tokenizer_of(None, *tokens)
    )  # its token of sound has a fixed number, here that of a letter
    save(
        folder,
        "VoxtralForConditionalGeneration",
        made,
        {**MELS, "intermediate_size": 128, "_own": ("audio_token_id",), "audio_token_id": 24},
        config=T.VoxtralConfig(audio_token_id=24),
    )
