"""Models that speak."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    BarkConfig,
    BarkModel,
    EncodecConfig,
    FastSpeech2ConformerConfig,
    FastSpeech2ConformerHifiGanConfig,
    FastSpeech2ConformerWithHifiGan,
    FastSpeech2ConformerWithHifiGanConfig,
    GenerationConfig,
    MusicgenConfig,
    MusicgenForConditionalGeneration,
    MusicgenMelodyConfig,
    MusicgenMelodyForConditionalGeneration,
    SeamlessM4TConfig,
    SeamlessM4TForTextToSpeech,
    SeamlessM4TTokenizer,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2ForTextToSpeech,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    T5Config,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
)

from tiny_transformers import byte_tokenizer, checkpoint, maker

LETTERS = " abcdefghijklmnopqrstuvwxyz'-"


@maker("VitsModel")
def vits(folder: Path, speakers: int = 3) -> None:
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "flow_size": 16,
        "spectrogram_bins": 9, "speaker_embedding_size": 8, "upsample_initial_channel": 16, "upsample_rates": [4, 4],
        "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
        "duration_predictor_filter_channels": 16, "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 1,
        "posterior_encoder_num_wavenet_layers": 1, "duration_predictor_num_flows": 2, "depth_separable_num_layers": 1,
    }  # fmt: skip
    model = VitsModel(VitsConfig(vocab_size=len(LETTERS) + 1, num_speakers=speakers, **sizes))
    with torch.no_grad():  # spoken letters last some frames, as in a trained model
        model.duration_predictor.flows[0].translate.fill_(-1.0)
    audible(model, "decoder.conv_post", by=0.02)
    model.save_pretrained(folder)
    vocabulary = folder / "letters.json"
    vocabulary.write_text(json.dumps({"<pad>": 0, **{letter: n + 1 for n, letter in enumerate(LETTERS)}}))
    VitsTokenizer(str(vocabulary), unk_token="<pad>", language="eng", phonemize=False).save_pretrained(folder)


HIFIGAN = {
    "model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
}  # fmt: skip


def audible(model: torch.nn.Module, *ends: str, by: float) -> None:
    """Scale the last layers of a vocoder: random ones are silent, or clip."""
    with torch.no_grad():
        for name in ends:
            model.get_submodule(name).weight.mul_(by)


def coded(model: torch.nn.Module) -> torch.nn.Module:
    """Draw the codebooks of a codec, which are zeros in a new one."""
    for name, buffer in model.named_buffers():
        if name.endswith((".embed", "embed_sum")):
            buffer.normal_()
    return model


@maker("SpeechT5ForTextToSpeech")
def speecht5(folder: Path) -> None:
    sizes = {
        "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 8, "speech_decoder_prenet_units": 8,
        "speech_decoder_postnet_units": 8, "speech_decoder_postnet_layers": 2, "speaker_embedding_dim": 12,
        "conv_dim": [8], "conv_stride": [4], "conv_kernel": [4],
    }  # fmt: skip
    SpeechT5ForTextToSpeech(SpeechT5Config(vocab_size=264, pad_token_id=256, **sizes)).save_pretrained(folder)
    vocoder = SpeechT5HifiGan(SpeechT5HifiGanConfig(**HIFIGAN))
    audible(vocoder, "conv_pre", "conv_post", by=100.0)
    vocoder.save_pretrained(folder / "vocoder")
    byte_tokenizer(template=None).save_pretrained(folder)
    (folder / "voices").mkdir()
    for number, name in enumerate(("anna", "bert")):
        np.save(folder / "voices" / name, np.random.default_rng(number).normal(size=12).astype(np.float32))


@maker("FastSpeech2ConformerWithHifiGan")
def fastspeech2(folder: Path) -> None:
    model = FastSpeech2ConformerConfig(
        vocab_size=264, hidden_size=16, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_num_attention_heads=2,
        decoder_num_attention_heads=2, encoder_linear_units=16, decoder_linear_units=16, duration_predictor_channels=8,
        energy_predictor_channels=8, pitch_predictor_channels=8, speech_decoder_postnet_units=8, speech_decoder_postnet_layers=2,
        pitch_predictor_layers=1, energy_predictor_layers=1,
    )  # fmt: skip
    vocoder = FastSpeech2ConformerHifiGanConfig(**HIFIGAN)
    config = FastSpeech2ConformerWithHifiGanConfig(model_config=model.to_dict(), vocoder_config=vocoder.to_dict())
    made = FastSpeech2ConformerWithHifiGan(config)
    with torch.no_grad():
        made.model.duration_predictor.linear.bias.fill_(1.2)
    audible(made, "vocoder.conv_pre", "vocoder.conv_post", by=20.0)
    made.save_pretrained(folder)
    byte_tokenizer(template=None).save_pretrained(folder)


@maker("FastSpeech2ConformerModel")
def fastspeech2_alone(folder: Path) -> None:
    whole = FastSpeech2ConformerWithHifiGan.from_pretrained(checkpoint("FastSpeech2ConformerWithHifiGan"))
    whole.model.save_pretrained(folder)
    whole.vocoder.save_pretrained(folder / "vocoder")
    byte_tokenizer(template=None).save_pretrained(folder)


def encodec(quantizers: int) -> EncodecConfig:
    return EncodecConfig(
        hidden_size=8, num_filters=4, upsampling_ratios=[8, 5], codebook_size=32, codebook_dim=8, num_lstm_layers=1,
        target_bandwidths=[6.0 * quantizers], kernel_size=3, last_kernel_size=3,
    )  # fmt: skip


@maker("BarkModel")
def bark(folder: Path) -> None:
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 16}
    config = BarkConfig(
        semantic_config={**sizes, "input_vocab_size": 400, "output_vocab_size": 110},
        coarse_acoustics_config={**sizes, "input_vocab_size": 180, "output_vocab_size": 180},
        fine_acoustics_config={**sizes, "input_vocab_size": 40, "output_vocab_size": 40},
        codec_config=encodec(8).to_dict(),
    )
    coded(BarkModel(config)).save_pretrained(folder)  # type: ignore[operator]
    generation = {
        "semantic_config": {
            "eos_token_id": 100, "text_encoding_offset": 110, "text_pad_token": 380, "semantic_infer_token": 381,
            "semantic_vocab_size": 100, "do_sample": True, "max_new_tokens": 12,
        },
        "coarse_acoustics_config": {"coarse_semantic_pad_token": 170, "coarse_infer_token": 171, "do_sample": True},
        "fine_acoustics_config": {"temperature": 0.5},
        "codebook_size": 32, "sample_rate": 24_000, "model_type": "bark",
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    byte_tokenizer(template=None).save_pretrained(folder)
    (folder / "speaker_embeddings").mkdir()
    listed: dict[str, object] = {"repo_or_path": "somebody/bark"}
    drawn = np.random.default_rng(0)
    for name in ("en_0", "en_1"):
        listed[name] = {}
        shapes = (("semantic_prompt", 100, (20,)), ("coarse_prompt", 32, (2, 30)), ("fine_prompt", 32, (8, 30)))
        for prompt, codes, shape in shapes:
            file = f"speaker_embeddings/{name}_{prompt}.npy"
            np.save(folder / file, drawn.integers(0, codes, shape))
            listed[name][prompt] = file  # type: ignore[index]
    (folder / "speaker_embeddings_path.json").write_text(json.dumps(listed))


def _seamless(folder: Path, config: SeamlessM4TConfig | SeamlessM4Tv2Config, kind: type) -> None:
    model = kind(config)
    audible(model, "vocoder.hifi_gan.conv_post", by=0.05)
    languages = {"eng": 40, "fra": 41}
    letters = {letter: number + 4 for number, letter in enumerate("▁" + LETTERS.strip())}
    model.generation_config = GenerationConfig(
        max_new_tokens=16, decoder_start_token_id=3, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        text_decoder_lang_to_code_id=languages, t2u_lang_code_to_id={"eng": 20, "fra": 21},
        vocoder_lang_code_to_id={"eng": 0, "fra": 1}, char_to_id=letters,
        id_to_text={str(number): letter for letter, number in letters.items()},
    )  # fmt: skip
    model.save_pretrained(folder)
    tokens = {
        "<pad>": 0,
        "<unk>": 1,
        "<s>": 2,
        "</s>": 3,
        **letters,
        **{f"__{name}__": n for name, n in languages.items()},
    }
    SeamlessM4TTokenizer(vocab=tokens, src_lang="eng", tgt_lang="eng").save_pretrained(folder)


SEAMLESS = {
    "vocab_size": 44, "t2u_vocab_size": 24, "hidden_size": 16, "encoder_layers": 1, "encoder_ffn_dim": 16, "encoder_attention_heads": 2,
    "decoder_layers": 1, "decoder_ffn_dim": 16, "decoder_attention_heads": 2, "t2u_encoder_layers": 1, "t2u_encoder_ffn_dim": 16,
    "t2u_encoder_attention_heads": 2, "t2u_decoder_layers": 1, "t2u_decoder_ffn_dim": 16, "t2u_decoder_attention_heads": 2,
    "speech_encoder_layers": 1, "speech_encoder_attention_heads": 2, "speech_encoder_intermediate_size": 16,
    "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]], "unit_hifi_gan_vocab_size": 24, "unit_embed_dim": 16, "lang_embed_dim": 4,
    "spkr_embed_dim": 4, "vocoder_num_langs": 2,
    "vocoder_num_spkrs": 3, "vocoder_offset": 0, "initializer_range": 0.5, "max_position_embeddings": 256, "t2u_max_new_tokens": 20,
}  # fmt: skip


@maker("SeamlessM4TForTextToSpeech")
def seamless(folder: Path) -> None:
    _seamless(folder, SeamlessM4TConfig(**SEAMLESS), SeamlessM4TForTextToSpeech)


@maker("SeamlessM4Tv2ForTextToSpeech")
def seamless_v2(folder: Path) -> None:
    sizes = {"char_vocab_size": 44, "t2u_variance_predictor_embed_dim": 16, "t2u_variance_predictor_hidden_dim": 8}
    _seamless(folder, SeamlessM4Tv2Config(**SEAMLESS, **sizes), SeamlessM4Tv2ForTextToSpeech)


def _musicgen(folder: Path, config: type, kind: type) -> None:
    text = T5Config(vocab_size=264, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    decoder = {
        "vocab_size": 32, "max_position_embeddings": 64, "num_hidden_layers": 1, "ffn_dim": 16, "num_attention_heads": 2,
        "hidden_size": 16, "num_codebooks": 4, "pad_token_id": 32, "bos_token_id": 32,
    }  # fmt: skip
    model = coded(kind(config(text_encoder=text.to_dict(), audio_encoder=encodec(4).to_dict(), decoder=decoder)))
    model.generation_config = GenerationConfig(
        do_sample=True,
        guidance_scale=3.0,
        max_new_tokens=24,
        decoder_start_token_id=32,
        bos_token_id=32,
        pad_token_id=32,
    )
    model.save_pretrained(folder)
    byte_tokenizer(template=None).save_pretrained(folder)


@maker("MusicgenForConditionalGeneration")
def musicgen(folder: Path) -> None:
    _musicgen(folder, MusicgenConfig, MusicgenForConditionalGeneration)


@maker("MusicgenMelodyForConditionalGeneration")
def musicgen_melody(folder: Path) -> None:
    _musicgen(folder, MusicgenMelodyConfig, MusicgenMelodyForConditionalGeneration)
