"""Models that speak."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    BarkConfig,
    BarkModel,
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    EncodecFeatureExtractor,
    DacConfig,
    DacFeatureExtractor,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaProcessor,
    DiaTokenizer,
    EncodecConfig,
    FastSpeech2ConformerConfig,
    FastSpeech2ConformerHifiGanConfig,
    FastSpeech2ConformerWithHifiGan,
    FastSpeech2ConformerWithHifiGanConfig,
    GenerationConfig,
    GradiumPhononTTSConfig,
    GradiumPhononTTSForConditionalGeneration,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2TokenizerConfig,
    MusicgenConfig,
    MusicgenForConditionalGeneration,
    MusicgenMelodyConfig,
    MusicgenMelodyForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
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
    VibeVoiceAcousticTokenizerConfig,
    VibeVoiceAcousticTokenizerFeatureExtractor,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
    VibeVoiceProcessor,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
)

from omni_transformers.speak.higgs import codec_class
from tiny_transformers import byte_tokenizer, maker

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
    generation = dict(
        semantic_config={
            "eos_token_id": 100, "text_encoding_offset": 110, "text_pad_token": 380, "semantic_infer_token": 381,
            "semantic_vocab_size": 100, "do_sample": True, "max_new_tokens": 12,
        },
        coarse_acoustics_config={"coarse_semantic_pad_token": 170, "coarse_infer_token": 171, "do_sample": True},
        fine_acoustics_config={"temperature": 0.5},
        codebook_size=32, sample_rate=24_000, model_type="bark",
    )  # fmt: skip
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
    "spkr_embed_dim": 4, "vocoder_num_langs": 2, "vocoder_num_spkrs": 3, "vocoder_offset": 0, "initializer_range": 0.5, "max_position_embeddings": 256, "t2u_max_new_tokens": 20,
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


LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}

CSM_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}"
    "{% else %}<|AUDIO|><|audio_eos|>{% endif %}{% endfor %}</s>{% endfor %}"
)


@maker("CsmForConditionalGeneration")
def csm(folder: Path) -> None:
    codec = {
        "hidden_size": 16, "num_filters": 2, "codebook_size": 64, "codebook_dim": 8, "num_quantizers": 4,
        "vector_quantization_hidden_dimension": 8, "upsample_groups": 16, "num_hidden_layers": 1, "intermediate_size": 16,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "layer_scale_initial_scale": 1.0,
    }  # fmt: skip
    codes = {"num_codebooks": 4, "vocab_size": 34, "head_dim": 8, "initializer_range": 0.3}
    config = CsmConfig(
        **LAYERS, **codes, text_vocab_size=264, max_position_embeddings=512, pad_token_id=256, bos_token_id=257, codebook_pad_token_id=33,
        audio_token_id=259, audio_eos_token_id=260, codec_config={"model_type": "mimi", **codec},
        depth_decoder_config={**LAYERS, **codes, "backbone_hidden_size": 16, "max_position_embeddings": 8},
    )  # fmt: skip
    model = coded(CsmForConditionalGeneration(config))
    model.generation_config = GenerationConfig(do_sample=True, max_new_tokens=9, pad_token_id=256)
    model.depth_decoder.generation_config = GenerationConfig(do_sample=True)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer("<|AUDIO|>", "<|audio_eos|>", template=None)
    CsmProcessor(EncodecFeatureExtractor(), tokenizer, chat_template=CSM_TEMPLATE).save_pretrained(folder)


@maker("DiaForConditionalGeneration")
def dia(folder: Path) -> None:
    delays = [0, 2, 3]
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 16, "intermediate_size": 16}
    config = DiaConfig(
        encoder_config={**heads, "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 128},
        decoder_config={
            **heads, "num_hidden_layers": 1, "cross_num_attention_heads": 2, "cross_head_dim": 8, "cross_num_key_value_heads": 2,
            "cross_hidden_size": 16, "vocab_size": 36, "num_channels": 3, "pad_token_id": 33, "eos_token_id": 32, "bos_token_id": 34,
            "max_position_embeddings": 128,
        },
        delay_pattern=delays, pad_token_id=33, eos_token_id=32, bos_token_id=34, decoder_start_token_id=34, initializer_range=0.3,
    )  # fmt: skip
    model = DiaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=True, max_length=60, guidance_scale=3.0, top_k=20, pad_token_id=33, eos_token_id=32, bos_token_id=34,
        decoder_start_token_id=34,
    )  # fmt: skip
    model.save_pretrained(folder)
    codec = DacModel(
        DacConfig(
            encoder_hidden_size=4, downsampling_ratios=[2, 5], decoder_hidden_size=16, upsampling_ratios=[5, 2], n_codebooks=3,
            codebook_size=32, codebook_dim=4, sampling_rate=44_100,
        )
    ).eval()  # fmt: skip
    codec.save_pretrained(folder / "audio_tokenizer")
    codec = DacModel.from_pretrained(folder / "audio_tokenizer")
    processor = DiaProcessor(DiaFeatureExtractor(hop_length=10), DiaTokenizer(), audio_tokenizer=codec)
    processor.save_pretrained(folder)


def _pocket(folder: Path, config: type, kind: type, **fields: object) -> None:
    head = {"hidden_size": 16, "num_hidden_layers": 1, "latent_dim": 4, "condition_dim": 16, "frequency_embedding_size": 8}
    sizes = {**LAYERS, "num_key_value_heads": 2, "vocab_size": 264, "latent_dim": 4, "pad_token_id": 256, "initializer_range": 0.3}
    ids = {"audio_prompt_token_id": 259, "audio_latent_token_id": 260, "audio_bos_token_id": 261}
    model = kind(config(**sizes, **ids, **fields, flow_head_config=head))
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.7, max_new_tokens=9, pad_token_id=256, eos_threshold=1e3)
    model.save_pretrained(folder)
    codec = {
        "hidden_size": 16, "num_filters": 2, "upsample_groups": 16, "intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "latent_stride": 4, "latent_dim": 4,
        "layer_scale_initial_scale": 1.0,
    }  # fmt: skip
    made = PocketTTSAudioTokenizerModel(PocketTTSAudioTokenizerConfig(**codec))
    made.save_pretrained(folder / "audio_tokenizer")
    names = {"audio_prompt_token": "<|voice|>", "audio_latent_token": "<|latent|>", "audio_bos_token": "<|speak|>"}
    marks = [*names.values(), "<|begin|>"]
    if "audio_prompt_bos_token_id" in fields:
        names["audio_prompt_bos_token"] = "<|begin|>"
    template = (
        "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'audio' %}<|begin|><|voice|>{% else %}{{ p['text'] }}"
        "{% endif %}{% endfor %}<|speak|>{% endfor %}"
    ).replace("<|begin|>", "<|begin|>" if "audio_prompt_bos_token" in names else "")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(*marks).backend_tokenizer, pad_token="<pad>", padding_side="left", extra_special_tokens=names
    )
    codec_of_it = PocketTTSAudioTokenizerModel.from_pretrained(folder / "audio_tokenizer")
    features = PocketTTSFeatureExtractor(frame_size=480, pad_to_multiple_of=480)
    PocketTTSProcessor(features, tokenizer, codec_of_it, chat_template=template).save_pretrained(folder)


@maker("PocketTTSForConditionalGeneration")
def pocket(folder: Path) -> None:
    _pocket(folder, PocketTTSConfig, PocketTTSForConditionalGeneration, audio_prompt_bos_token_id=262)


@maker("GradiumPhononTTSForConditionalGeneration")
def phonon(folder: Path) -> None:
    _pocket(folder, GradiumPhononTTSConfig, GradiumPhononTTSForConditionalGeneration, audio_prompt_dim=6, num_speakers_embedding_dim=4)


@maker("VibeVoiceForConditionalGeneration")
def vibevoice(folder: Path) -> None:
    codec = {"hidden_size": 8, "num_filters": 4, "downsampling_ratios": [2, 5], "depths": [1, 1, 1]}
    config = VibeVoiceConfig(
        audio_config=VibeVoiceAcousticTokenizerConfig(**codec, initializer_range=0.3).to_dict(),
        semantic_model_config={"model_type": "vibevoice_acoustic_tokenizer_encoder", **codec},
        text_config=Qwen2Config(**LAYERS, vocab_size=264).to_dict(),
        diffusion_head_config={"num_hidden_layers": 1, "intermediate_size": 16, "frequency_embedding_size": 8},
        pad_token_id=256, eos_token_id=258, audio_bos_token_id=259, audio_eos_token_id=260, audio_token_id=261,
    )  # fmt: skip
    model = VibeVoiceForConditionalGeneration(config)
    inner = model.model
    with torch.no_grad():  # it goes on speaking: one coordinate is large, and stands for the token of a frame
        inner.language_model.embed_tokens.weight[:, 0] = 10.0
        inner.multi_modal_projector.linear_2.bias[0] = 10.0
        model.lm_head.weight.zero_()
        model.lm_head.weight[261, 0] = 5.0
        for module in inner.diffusion_head.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.normal_(0, 0.3)
    model.generation_config = GenerationConfig(
        max_new_tokens=8, guidance_scale=1.3, pad_token_id=256, eos_token_id=258, num_diffusion_steps=4
    )
    model.save_pretrained(folder)
    template = (
        "{% for m in messages %}{{ m['role'] }}: {% for p in m['content'] %}{% if p['type'] == 'audio' %}<|a|><|frame|><|z|>"
        "{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n{% endfor %}<|a|>"
    )
    marks = {"audio_bos_token": "<|a|>", "audio_eos_token": "<|z|>", "audio_token": "<|frame|>"}
    tokenizer = byte_tokenizer(*marks.values(), template=None)
    features = VibeVoiceAcousticTokenizerFeatureExtractor(pad_to_multiple_of=10)
    VibeVoiceProcessor(features, tokenizer, chat_template=template, **marks).save_pretrained(folder)


HIGGS_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% for p in m['content'] %}{% if p['type'] == 'audio' %}<|audio_out_bos|><|AUDIO_OUT|>"
    "<|audio_eos|>{% else %}{{ p['text'] }}{% endif %}{% endfor %}</s>{% endfor %}<|assistant|><|audio_out_bos|>"
)


@maker("HiggsAudioV2ForConditionalGeneration")
def higgs(folder: Path) -> None:
    marks = ("<|AUDIO_OUT|>", "<|audio_out_bos|>", "<|audio_eos|>", "<|reserved_special_token_6|>")  # 259 and on
    ids = {"audio_token_id": 259, "audio_bos_token_id": 260, "audio_delay_token_id": 262}
    config = HiggsAudioV2Config(
        **LAYERS, **ids, vocab_size=264, head_dim=8, num_codebooks=4, codebook_size=34, audio_stream_bos_id=32, audio_stream_eos_id=33,
        pad_token_id=256, bos_token_id=257, eos_token_id=258, initializer_range=0.3,
    )  # fmt: skip
    model = HiggsAudioV2ForConditionalGeneration(config)
    with torch.no_grad():  # the end is never likely
        model.audio_lm_head.weight.view(4, 34, -1)[:, 33] = 0.0
    model.generation_config = GenerationConfig(do_sample=True, max_new_tokens=40, top_k=8, pad_token_id=256, eos_token_id=258)
    model.save_pretrained(folder)
    sound = {"encoder_hidden_size": 4, "downsampling_ratios": [5, 4], "decoder_hidden_size": 16, "upsampling_ratios": [5, 4], "hidden_size": 8}
    heard = {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "conv_dim": [8, 8],
        "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    settings = HiggsAudioV2TokenizerConfig(
        acoustic_model_config={"model_type": "dac", **sound}, semantic_model_config={"model_type": "hubert", **heard},
        codebook_size=32, codebook_dim=4, target_bandwidths=[24.0], downsample_factor=10, initializer_range=0.3,
    )  # fmt: skip
    codec = coded(codec_class()(settings))
    codec.save_pretrained(folder / "audio_tokenizer")
    tokenizer = byte_tokenizer(*marks, template=HIGGS_TEMPLATE)
    tokenizer.save_pretrained(folder)
    DacFeatureExtractor(sampling_rate=24_000, hop_length=20).save_pretrained(folder)
    known = {"audio_stream_bos_id": 32, "audio_stream_eos_id": 33, "processor_class": "HiggsAudioV2Processor"}
    (folder / "processor_config.json").write_text(json.dumps(known))
