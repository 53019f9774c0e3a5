"""Models that write recordings down; see also ``frame_recognisers`` and ``tiny_whisper``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import transformers
from transformers import GenerationConfig

from tiny_transformers import frame_recognisers, live, maker, tiny_whisper
from tiny_transformers.frame_recognisers import FASTCONFORMER, WAVES, letters

assert frame_recognisers
assert live
assert tiny_whisper


def _save(model: Any, processor: Any, folder: Path, **generation: Any) -> None:
    given = {"max_length": 24, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1, **generation}
    model.generation_config = GenerationConfig(**given)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


@maker("MoonshineForConditionalGeneration")
def _moonshine(folder: Path) -> None:
    tokenizer = letters()
    config = transformers.MoonshineConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        initializer_range=0.5,
    )
    processor = transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor(), tokenizer)
    _save(transformers.MoonshineForConditionalGeneration(config), processor, folder)


@maker("MoonshineStreamingForConditionalGeneration")
def _moonshine_streaming(folder: Path) -> None:
    tokenizer = letters()
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MoonshineStreamingConfig(
        vocab_size=len(tokenizer),
        encoder_config={**sizes, "num_key_value_heads": 2, "sliding_windows": [[4, 2]], "initializer_range": 0.5},
        decoder_start_token_id=1,
        initializer_range=0.5,
        num_key_value_heads=2,
        **sizes,
    )
    processor = transformers.MoonshineStreamingProcessor(transformers.Wav2Vec2FeatureExtractor(), tokenizer)
    _save(transformers.MoonshineStreamingForConditionalGeneration(config), processor, folder)


@maker("Speech2TextForConditionalGeneration")
def _speech2text(folder: Path) -> None:
    tokenizer = letters()
    config = transformers.Speech2TextConfig(
        vocab_size=len(tokenizer),
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        d_model=32,
        conv_channels=16,
        input_feat_per_channel=16,
        init_std=0.5,
        max_source_positions=3000,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    features = transformers.Speech2TextFeatureExtractor(feature_size=16, num_mel_bins=16)
    _save(
        transformers.Speech2TextForConditionalGeneration(config),
        transformers.Speech2TextProcessor(features, tokenizer),
        folder,
        num_beams=2,
    )


@maker("CanaryForConditionalGeneration")
def _canary(folder: Path) -> None:
    tokenizer = letters("<|en|>", "<|de|>", "<|pnc|>")
    template = (
        "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'text' %}<s><|{{ p['source_language'] }}|>"
        "<|{{ p['target_language'] }}|><|pnc|>{% endif %}{% endfor %}{% endfor %}"
    )
    decoder = transformers.CanaryDecoderConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.5,
    )
    config = transformers.CanaryConfig(
        vocab_size=len(tokenizer),
        encoder_config=transformers.ParakeetEncoderConfig(**FASTCONFORMER),
        decoder_config=decoder,
        decoder_start_token_id=1,
        initializer_range=0.5,
    )
    features = transformers.ParakeetFeatureExtractor(feature_size=16)
    _save(
        transformers.CanaryForConditionalGeneration(config),
        transformers.CanaryProcessor(features, tokenizer, chat_template=template),
        folder,
    )


@maker("CohereAsrForConditionalGeneration")
def _cohere(folder: Path) -> None:
    names = (
        "startofcontext",
        "startoftranscript",
        "emo:undefined",
        "en",
        "de",
        "pnc",
        "noitn",
        "notimestamp",
        "nodiarize",
    )
    tokenizer = letters(*(f"<|{each}|>" for each in names))
    config = transformers.CohereAsrConfig(
        vocab_size=len(tokenizer),
        encoder_config=transformers.ParakeetEncoderConfig(**FASTCONFORMER),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        decoder_start_token_id=1,
    )
    features = transformers.CohereAsrFeatureExtractor(feature_size=16)
    _save(
        transformers.CohereAsrForConditionalGeneration(config),
        transformers.CohereAsrProcessor(features, tokenizer),
        folder,
    )


def _seamless(version: str, folder: Path) -> None:
    tokenizer = letters("__eng__", "__deu__", "__fra__")
    config = getattr(transformers, f"SeamlessM4T{version}Config")(
        vocab_size=len(tokenizer),
        hidden_size=32,
        encoder_layers=1,
        decoder_layers=1,
        speech_encoder_layers=1,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        speech_encoder_intermediate_size=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        speech_encoder_attention_heads=2,
        max_position_embeddings=64,
        conv_depthwise_kernel_size=7,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        t2u_encoder_layers=1,
        t2u_decoder_layers=1,
        t2u_vocab_size=16,
    )
    model = getattr(transformers, f"SeamlessM4T{version}ForSpeechToText")(config)
    features = transformers.SeamlessM4TFeatureExtractor(feature_size=80, num_mel_bins=80)
    codes = {"eng": 4, "deu": 5, "fra": 6}
    processor = transformers.SeamlessM4TProcessor(features, tokenizer)
    _save(model, processor, folder, text_decoder_lang_to_code_id=codes, decoder_start_token_id=2)


maker("SeamlessM4TForSpeechToText")(partial(_seamless, ""))
maker("SeamlessM4Tv2ForSpeechToText")(partial(_seamless, "v2"))


@maker("SpeechT5ForSpeechToText")
def _speecht5(folder: Path) -> None:
    tokenizer = letters()
    waves = {
        name: value
        for name, value in WAVES.items()
        if name not in ("intermediate_size", "num_hidden_layers", "num_attention_heads")
    }
    config = transformers.SpeechT5Config(
        **{**waves, "vocab_size": len(tokenizer)},
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_text_positions=40,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    processor = transformers.SpeechT5Processor(transformers.SpeechT5FeatureExtractor(), tokenizer)
    _save(transformers.SpeechT5ForSpeechToText(config), processor, folder)


@maker("SpeechEncoderDecoderModel")
def _encoder_decoder(folder: Path) -> None:
    tokenizer = letters()
    encoder = transformers.Wav2Vec2Config(**WAVES)
    decoder = transformers.BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        max_position_embeddings=40,
        init_std=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        is_encoder_decoder=False,
    )
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    processor = transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor(), tokenizer)
    _save(transformers.SpeechEncoderDecoderModel(config=config), processor, folder)
