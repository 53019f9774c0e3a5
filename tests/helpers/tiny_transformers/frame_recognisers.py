"""Models that write recordings down by frames: CTC and transducers."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.models.parakeet.tokenization_parakeet import ParakeetTokenizer

from tiny_transformers import maker

WAVES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (20, 16),
    "conv_kernel": (20, 16),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "initializer_range": 0.5,
    "vocab_size": 32,
    "pad_token_id": 0,
}
FASTCONFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 5,
    "num_mel_bins": 16,
    "initializer_range": 0.4,
    "layerdrop": 0.0,
}


def letters(*special: str, kind: Any = PreTrainedTokenizerFast, **given: Any) -> Any:
    """Return a tokenizer of letters, with or without a space before them: ``<pad>`` 0, ``<s>`` 1, ``</s>`` 2, ``<unk>`` 3, ``special``."""
    names = ["<pad>", "<s>", "</s>", "<unk>", *special]
    vocabulary = {
        each: number
        for number, each in enumerate(
            [*names, "▁", *string.ascii_lowercase, *(f"▁{each}" for each in string.ascii_lowercase)]
        )
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(names)
    return kind(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", **given
    )


def _characters(folder: Path) -> Any:
    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *string.ascii_lowercase, "'"]
    (folder / "vocab.json").write_text(json.dumps({each: number for number, each in enumerate(names)}))
    return transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))


def _waves(config: str, folder: Path, **given: Any) -> None:
    """Write a CTC model over samples."""
    name = config.removesuffix("Config")
    model = getattr(transformers, f"{name}ForCTC")(getattr(transformers, config)(**{**WAVES, **given}))
    with torch.no_grad():
        model.lm_head.bias[1:4] -= 50  # no special tokens but the blank
        model.lm_head.bias[4] += 4  # spaces
    model.save_pretrained(folder)
    features = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=given.get("feat_extract_norm") == "layer")
    transformers.Wav2Vec2Processor(features, _characters(folder)).save_pretrained(folder)


_SEW = {"conv_dim": (16, 16), "squeeze_factor": 2}
_SIZES: dict[str, dict[str, Any]] = {
    "Wav2Vec2Config": {},
    "Wav2Vec2ConformerConfig": {
        "feat_extract_norm": "layer",
        "conv_depthwise_kernel_size": 7,
        "max_source_positions": 600,
    },
    "HubertConfig": {"feat_extract_norm": "layer"},
    "WavLMConfig": {"num_buckets": 8, "max_bucket_distance": 16},
    "SEWConfig": _SEW,
    "SEWDConfig": {**_SEW, "position_buckets": 8, "max_position_embeddings": 16},
    "UniSpeechConfig": {},
    "UniSpeechSatConfig": {},
    "Data2VecAudioConfig": {"conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 2},
}
for _config, _given in _SIZES.items():
    maker(_config.replace("Config", "ForCTC"))(partial(_waves, _config, **_given))


@maker("Wav2Vec2BertForCTC")
def _bert(folder: Path) -> None:
    sizes = {name: value for name, value in WAVES.items() if "conv" not in name}
    config = transformers.Wav2Vec2BertConfig(
        **sizes, feature_projection_input_dim=160, conv_depthwise_kernel_size=7, max_source_positions=200
    )
    model = transformers.Wav2Vec2BertForCTC(config)
    with torch.no_grad():
        model.lm_head.bias[1:4] -= 50
    model.save_pretrained(folder)
    features = transformers.SeamlessM4TFeatureExtractor(feature_size=80, num_mel_bins=80)
    transformers.Wav2Vec2BertProcessor(features, _characters(folder)).save_pretrained(folder)


@maker("ParakeetForCTC")
def _parakeet(folder: Path) -> None:
    tokenizer = letters(kind=ParakeetTokenizer)
    config = transformers.ParakeetCTCConfig(
        vocab_size=len(tokenizer), encoder_config=transformers.ParakeetEncoderConfig(**FASTCONFORMER), pad_token_id=0
    )
    transformers.ParakeetForCTC(config).save_pretrained(folder)
    features = transformers.ParakeetFeatureExtractor(feature_size=16)
    transformers.ParakeetProcessor(features, tokenizer, decoder_type="ctc").save_pretrained(folder)


@maker("GraniteSpeech5ForCTC")
def _granite(folder: Path) -> None:
    tokenizer = letters(kind=ParakeetTokenizer)
    encoder = transformers.GraniteSpeech5EncoderConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_mel_bins=16,
        context_size=16,
        max_position_embeddings=32,
        conv_kernel_size=3,
        initializer_range=0.4,
    )
    config = transformers.GraniteSpeech5CTCConfig(vocab_size=len(tokenizer), encoder_config=encoder, pad_token_id=0)
    transformers.GraniteSpeech5ForCTC(config).save_pretrained(folder)
    features = {"feature_extractor_type": "GraniteSpeech5FeatureExtractor", "num_mel_bins": 16}
    told = {"processor_class": "GraniteSpeech5Processor", "feature_extractor": features}
    (folder / "processor_config.json").write_text(json.dumps(told))  # transformers writes it with torchaudio alone
    tokenizer.save_pretrained(folder)


@maker("LasrForCTC")
def _lasr(folder: Path) -> None:
    names = [*string.ascii_lowercase, *(f"▁{each}" for each in string.ascii_lowercase)]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((each, -2.0) for each in names)]
    tokenizer = transformers.LasrTokenizer(vocab=vocabulary, extra_ids=0)
    sizes = {name: value for name, value in FASTCONFORMER.items() if name != "conv_kernel_size"}
    encoder = transformers.LasrEncoderConfig(**sizes, conv_kernel_size=8)
    config = transformers.LasrCTCConfig(vocab_size=len(tokenizer), encoder_config=encoder, pad_token_id=0)
    transformers.LasrForCTC(config).save_pretrained(folder)
    transformers.LasrProcessor(transformers.LasrFeatureExtractor(feature_size=16), tokenizer).save_pretrained(folder)


def _transducer(
    name: str, config: str, encoder: str, processor: Callable[..., Any], blank: float, folder: Path, **given: Any
) -> None:
    """Write a transducer. ``blank``: is added to the score of saying nothing, so that most frames do."""
    tokenizer = letters("<blank>", kind=ParakeetTokenizer)
    made = getattr(transformers, config)(
        vocab_size=len(tokenizer),
        decoder_hidden_size=16,
        num_decoder_layers=1,
        max_symbols_per_step=3,
        encoder_config=getattr(transformers, encoder)(**FASTCONFORMER),
        pad_token_id=0,
        blank_token_id=4,
        **given,
    )
    model = getattr(transformers, name)(made)
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() == 2:
                each.mul_(20 if "3_5" in name else 1.5)
        model.joint.head.bias[4] += blank
        model.joint.head.bias[len(tokenizer) + 1 :] += 20  # every token takes time
    durations = list(range(len(tokenizer), len(tokenizer) + len(getattr(made, "durations", ()))))
    model.generation_config = GenerationConfig(
        decoder_start_token_id=4, bos_token_id=4, pad_token_id=0, eos_token_id=None, suppress_tokens=durations or None
    )
    model.save_pretrained(folder)
    processor(tokenizer).save_pretrained(folder)


def _parakeet_processor(kind: str, tokenizer: Any) -> Any:
    return transformers.ParakeetProcessor(
        transformers.ParakeetFeatureExtractor(feature_size=16), tokenizer, decoder_type=kind
    )


def _nemotron_processor(tokenizer: Any) -> Any:
    return transformers.NemotronAsrStreamingProcessor(
        transformers.NemotronAsrStreamingFeatureExtractor(feature_size=16), tokenizer
    )


def _nemotron35_processor(tokenizer: Any) -> Any:
    return transformers.Nemotron3_5AsrProcessor(
        transformers.NemotronAsrStreamingFeatureExtractor(feature_size=16),
        tokenizer,
        prompt_dictionary={"en-US": 0, "de-DE": 1, "auto": 2},
        num_prompts=4,
    )


_TRANSDUCERS: tuple[tuple[str, str, str, Callable[..., Any], float, dict[str, Any]], ...] = (
    ("ParakeetForRNNT", "ParakeetRNNTConfig", "ParakeetEncoderConfig", partial(_parakeet_processor, "rnnt"), 22.0, {}),
    ("ParakeetForTDT", "ParakeetTDTConfig", "ParakeetEncoderConfig", partial(_parakeet_processor, "tdt"), 8.0, {}),
    (
        "NemotronAsrStreamingForRNNT",
        "NemotronAsrStreamingConfig",
        "NemotronAsrStreamingEncoderConfig",
        _nemotron_processor,
        10.0,
        {},
    ),
    (
        "Nemotron3_5AsrForRNNT",
        "Nemotron3_5AsrConfig",
        "NemotronAsrStreamingEncoderConfig",
        _nemotron35_processor,
        20.0,
        {"num_prompts": 4, "prompt_intermediate_size": 16, "default_prompt_id": 2},
    ),
)
for _name, _config, _encoder, _processor, _blank, _more in _TRANSDUCERS:
    maker(_name)(partial(_transducer, _name, _config, _encoder, _processor, _blank, **_more))
