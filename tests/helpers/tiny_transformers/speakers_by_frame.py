"""Models that speak frame by frame."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    DacConfig,
    DacFeatureExtractor,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaProcessor,
    DiaTokenizer,
    EncodecFeatureExtractor,
    GenerationConfig,
    GradiumPhononTTSConfig,
    GradiumPhononTTSForConditionalGeneration,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2TokenizerConfig,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    VibeVoiceAcousticTokenizerConfig,
    VibeVoiceAcousticTokenizerFeatureExtractor,
    VibeVoiceConfig,
    VibeVoiceForConditionalGeneration,
    VibeVoiceProcessor,
)

from omni_transformers.speak.higgs import codec_class
from tiny_transformers import byte_tokenizer, maker
from tiny_transformers.speakers import coded

LAYERS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}

CSM_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}"
    "{% else %}<|AUDIO|><|audio_eos|>{% endif %}{% endfor %}</s>{% endfor %}"
)


@maker("CsmForConditionalGeneration")
def csm(folder: Path) -> None:
    codec = {
        "hidden_size": 16, "num_filters": 2, "codebook_size": 32, "codebook_dim": 8, "num_quantizers": 4,
        "vector_quantization_hidden_dimension": 8, "upsample_groups": 16, "num_hidden_layers": 1, "intermediate_size": 16,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "layer_scale_initial_scale": 1.0,
    }  # fmt: skip
    codes = {"num_codebooks": 4, "vocab_size": 32, "head_dim": 8, "initializer_range": 0.3}
    config = CsmConfig(
        **LAYERS, **codes, text_vocab_size=264, max_position_embeddings=512, pad_token_id=256, bos_token_id=257, codebook_pad_token_id=31,
        audio_token_id=259, audio_eos_token_id=260, codec_config={"model_type": "mimi", **codec},
        depth_decoder_config={**LAYERS, **codes, "backbone_hidden_size": 16, "max_position_embeddings": 8},
    )  # fmt: skip
    model = coded(CsmForConditionalGeneration(config))
    *_, last = (each for each in model.codec_model.decoder.modules() if isinstance(each, torch.nn.Conv1d))
    with torch.no_grad():  # or it clips
        last.weight.mul_(0.1), last.bias.mul_(0.1)
    model.generation_config = GenerationConfig(do_sample=True, max_new_tokens=9, pad_token_id=256)
    model.depth_decoder.generation_config = GenerationConfig(do_sample=True)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer("<|AUDIO|>", "<|audio_eos|>", template=None)
    CsmProcessor(EncodecFeatureExtractor(), tokenizer, chat_template=CSM_TEMPLATE).save_pretrained(folder)


@maker("DiaForConditionalGeneration")
def dia(folder: Path) -> None:
    delays = [0, 2, 3]
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
    }
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
    processor = DiaProcessor(
        DiaFeatureExtractor(hop_length=10, sampling_rate=44_100), DiaTokenizer(), audio_tokenizer=codec
    )
    processor.save_pretrained(folder)


def _pocket(folder: Path, config: type, kind: type, **fields: object) -> None:
    head = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "latent_dim": 4,
        "condition_dim": 16,
        "frequency_embedding_size": 8,
    }
    sizes = {
        **LAYERS,
        "num_key_value_heads": 2,
        "vocab_size": 264,
        "latent_dim": 4,
        "pad_token_id": 256,
        "initializer_range": 0.3,
        "frame_rate": 2.0,
    }
    ids = {"audio_prompt_token_id": 259, "audio_latent_token_id": 260, "audio_bos_token_id": 261}
    model = kind(config(**sizes, **ids, **fields, flow_head_config=head))
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, max_new_tokens=9, pad_token_id=256, eos_threshold=1e3
    )
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
        tokenizer_object=byte_tokenizer(*marks).backend_tokenizer,
        pad_token="<pad>",
        padding_side="left",
        extra_special_tokens=names,
    )
    codec_of_it = PocketTTSAudioTokenizerModel.from_pretrained(folder / "audio_tokenizer")
    features = PocketTTSFeatureExtractor(frame_size=480, pad_to_multiple_of=480)
    PocketTTSProcessor(features, tokenizer, codec_of_it, chat_template=template).save_pretrained(folder)


@maker("PocketTTSForConditionalGeneration")
def pocket(folder: Path) -> None:
    _pocket(folder, PocketTTSConfig, PocketTTSForConditionalGeneration, audio_prompt_bos_token_id=262)


@maker("GradiumPhononTTSForConditionalGeneration")
def phonon(folder: Path) -> None:
    _pocket(
        folder,
        GradiumPhononTTSConfig,
        GradiumPhononTTSForConditionalGeneration,
        audio_prompt_dim=6,
        num_speakers_embedding_dim=4,
    )


def goes_on(model: VibeVoiceForConditionalGeneration) -> None:
    """Let a VibeVoice speak on: one coordinate is large, and stands for the token of a frame."""
    with torch.no_grad():
        model.model.language_model.embed_tokens.weight[:, 0] = 10.0
        model.model.multi_modal_projector.linear_2.bias[0] = 10.0
        model.lm_head.weight.zero_()
        model.lm_head.weight[261, 0] = 5.0


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
    goes_on(model)
    with torch.no_grad():
        for module in model.model.diffusion_head.modules():
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
    model.generation_config = GenerationConfig(
        do_sample=True, max_new_tokens=40, top_k=8, pad_token_id=256, eos_token_id=258
    )
    model.save_pretrained(folder)
    sound = {
        "encoder_hidden_size": 2, "downsampling_ratios": [8, 6, 5, 2], "decoder_hidden_size": 32, "upsampling_ratios": [8, 6, 5, 2],
        "hidden_size": 8,
    }  # fmt: skip
    heard = {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "conv_dim": [8, 8, 8], "conv_stride": [8, 8, 5], "conv_kernel": [8, 8, 5], "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    settings = HiggsAudioV2TokenizerConfig(
        acoustic_model_config={"model_type": "dac", **sound}, semantic_model_config={"model_type": "hubert", **heard},
        codebook_size=32, codebook_dim=4, target_bandwidths=[1.0], downsample_factor=320, initializer_range=0.3,
    )  # fmt: skip
    codec = coded(codec_class()(settings))
    codec.save_pretrained(folder / "audio_tokenizer")
    tokenizer = byte_tokenizer(*marks, template=HIGGS_TEMPLATE)
    tokenizer.save_pretrained(folder)
    DacFeatureExtractor(sampling_rate=24_000, hop_length=480).save_pretrained(folder)
    known = {"audio_stream_bos_id": 32, "audio_stream_eos_id": 33, "processor_class": "HiggsAudioV2Processor"}
    (folder / "processor_config.json").write_text(json.dumps(known))
