"""Licences of known weights, and what a checkpoint's own card says. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

KNOWN = {
    "BarkModel": ("suno/bark", "mit"),
    "CanaryForConditionalGeneration": ("nvidia/canary-1b-v2", "cc-by-4.0"),
    "CsmForConditionalGeneration": ("sesame/csm-1b", "apache-2.0"),
    "DiaForConditionalGeneration": ("nari-labs/Dia-1.6B-0626", "apache-2.0"),
    "FastSpeech2ConformerWithHifiGan": ("espnet/fastspeech2_conformer_with_hifigan", "apache-2.0"),
    "Gemma3ForConditionalGeneration": ("google/gemma-3-4b-it", "gemma"),
    "Gemma3nForConditionalGeneration": ("google/gemma-3n-E2B-it", "gemma"),
    "GptOssForCausalLM": ("openai/gpt-oss-20b", "apache-2.0"),
    "GraniteSpeechForConditionalGeneration": ("ibm-granite/granite-speech-3.3-2b", "apache-2.0"),
    "HiggsAudioV2ForConditionalGeneration": ("bosonai/higgs-audio-v2-generation-3B-base", "other"),
    "HubertForCTC": ("facebook/hubert-large-ls960-ft", "apache-2.0"),
    "KyutaiSpeechToTextForConditionalGeneration": ("kyutai/stt-2.6b-en-trfs", "cc-by-4.0"),
    "LlamaForCausalLM": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
    "LlavaForConditionalGeneration": ("llava-hf/llava-1.5-7b-hf", "llama2"),
    "MoonshineForConditionalGeneration": ("UsefulSensors/moonshine-tiny", "mit"),
    "MusicgenForConditionalGeneration": ("facebook/musicgen-small", "cc-by-nc-4.0"),
    "MusicgenMelodyForConditionalGeneration": ("facebook/musicgen-melody", "cc-by-nc-4.0"),
    "ParakeetForCTC": ("nvidia/parakeet-ctc-1.1b", "cc-by-4.0"),
    "ParakeetForTDT": ("nvidia/parakeet-tdt-0.6b-v3", "cc-by-4.0"),
    "PocketTTSForConditionalGeneration": ("kyutai/pocket-tts", "cc-by-4.0"),
    "Qwen2AudioForConditionalGeneration": ("Qwen/Qwen2-Audio-7B-Instruct", "apache-2.0"),
    "Qwen2VLForConditionalGeneration": ("Qwen/Qwen2-VL-2B-Instruct", "apache-2.0"),
    "Qwen3ASRForConditionalGeneration": ("Qwen/Qwen3-ASR-0.6B", "apache-2.0"),
    "Qwen3ForCausalLM": ("Qwen/Qwen3-0.6B", "apache-2.0"),
    "SeamlessM4TForSpeechToText": ("facebook/hf-seamless-m4t-medium", "cc-by-nc-4.0"),
    "SeamlessM4TForTextToSpeech": ("facebook/hf-seamless-m4t-medium", "cc-by-nc-4.0"),
    "SeamlessM4Tv2ForSpeechToText": ("facebook/seamless-m4t-v2-large", "cc-by-nc-4.0"),
    "SeamlessM4Tv2ForTextToSpeech": ("facebook/seamless-m4t-v2-large", "cc-by-nc-4.0"),
    "SmolVLMForConditionalGeneration": ("HuggingFaceTB/SmolVLM-256M-Instruct", "apache-2.0"),
    "Speech2TextForConditionalGeneration": ("facebook/s2t-small-librispeech-asr", "mit"),
    "SpeechT5ForSpeechToText": ("microsoft/speecht5_asr", "mit"),
    "SpeechT5ForTextToSpeech": ("microsoft/speecht5_tts", "mit"),
    "VibeVoiceForConditionalGeneration": ("microsoft/VibeVoice-1.5B", "mit"),
    "VitsModel": ("facebook/mms-tts-eng", "cc-by-nc-4.0"),
    "VoxtralForConditionalGeneration": ("mistralai/Voxtral-Mini-3B-2507", "apache-2.0"),
    "VoxtralRealtimeForConditionalGeneration": ("mistralai/Voxtral-Mini-4B-Realtime-2602", "apache-2.0"),
    "Wav2Vec2ForCTC": ("facebook/wav2vec2-base-960h", "apache-2.0"),
    "WhisperForConditionalGeneration": ("openai/whisper-small", "apache-2.0"),
}
"""By architecture, a released checkpoint and the licence of its weights as its card names it."""

_FIELD = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)
_CARD_CHARACTERS = 20_000


def licence_of(model: str, folder: Path) -> str | None:
    """Return the licence of a checkpoint: as its card (``README.md``) says, else of a known hub id; ``None``: not known."""
    card = folder / "README.md"
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_CARD_CHARACTERS)
        if head.startswith("---") and (found := _FIELD.search(head.split("\n---", 1)[0])) is not None:
            return found[1].lower()
    return next((licence for known, licence in KNOWN.values() if known == model.partition("@")[0]), None)


def forbids_commerce(licence: str) -> bool:
    """Return whether a licence allows no commercial use."""
    return "nc" in licence.split("-")
