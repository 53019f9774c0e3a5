"""Public names of this distribution, for models, kernels and engines in PyTorch.

The level of this interface is an entry point of the group ``omni.apis``; a plugin names those that it works with, as ``[torch-1]``.
Each name is imported when it is first asked for: a module that describes a pipeline can take names from here without loading torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.api import exports

if TYPE_CHECKING:
    from omni_torch.checkpoints.chat_templates import DEFAULT, FILE, TOOLS, read_templates
    from omni_torch.checkpoints.default import random_checkpoint
    from omni_torch.checkpoints.folders import (
        LARGEST_TEXT,
        Section,
        checked_file,
        load_checked,
        origin_of,
        read_json,
        read_tokenizer,
        written_once,
    )
    from omni_torch.checkpoints.gguf_checkpoints import GgufCheckpoint
    from omni_torch.checkpoints.headers import INDEX, SINGLE, TensorInfo
    from omni_torch.checkpoints.hub import config_folder, download, listing
    from omni_torch.checkpoints.prepared import file_identity, filled_on, keeps_bfloat16, kept_as_stored, load_prepared
    from omni_torch.checkpoints.tokens import check_length, encoded, longest_token
    from omni_torch.checkpoints.weights import (
        Checkpoint,
        PartOf,
        Source,
        Sources,
        embedding,
        load_module,
        prefixed,
        whole,
    )
    from omni_torch.engine.attention.decode import paged_decode
    from omni_torch.engine.key_values import KeyValues
    from omni_torch.engine.scheduler import EngineScheduler
    from omni_torch.engine.sequences import PagedSequences
    from omni_torch.loop.autoregressive import AutoregressiveLoop, LoopedScheduler, StepResult, run_batch
    from omni_torch.loop.continuation import extend
    from omni_torch.loop.packing import indices, packed_batch, prompt_runs, sampled_rows
    from omni_torch.loop.steps import StepScheduler
    from omni_torch.operations.code_frames import CodeChoice, FramePredictor, code_frames
    from omni_torch.operations.decoder_stack import (
        MOST_ROWS,
        DecoderStack,
        LayerWeights,
        MixtureWeights,
        decode_layers,
        prefill_layers,
    )
    from omni_torch.operations.decoder_step import DecoderStep, DescribeLayer, all_layers
    from omni_torch.operations.experts import experts, one_by_one, route_experts
    from omni_torch.operations.few_rows import (
        GROUP,
        FewRowsLinear,
        Groups,
        Matrix,
        few_rows_linear,
        matrix_of,
        stored_linear,
    )
    from omni_torch.operations.kernels import operation
    from omni_torch.operations.norm import RMSNorm
    from omni_torch.operations.shared import add_rms_norm, norm_rotary, norm_rotary_store, rms_norm, rotary, snake_conv
    from omni_torch.operations.sound_stack import (
        ConvNeXt,
        Convolution,
        Layer,
        Residual,
        Snake,
        SoundStack,
        Upsampling,
        decode_sound,
        memory_of,
    )
    from omni_torch.placement.budgets import LIBRARIES, CacheShape, Network
    from omni_torch.placement.devices import device_of, place
    from omni_torch.placement.pipeline_options import DTYPES, check_options
    from omni_torch.placement.work import Ask, DecoderWork, PassWork, PipelineWorks, StageWork, Work, sound_decoder
    from omni_torch.processes.freed_memory import return_freed_memory
    from omni_torch.processes.tensor_parallel import ALONE, Part, TensorParallel, random_of
    from omni_torch.quantization.coded_weights import UNIT
    from omni_torch.quantization.packed_linear import Pack, pack, pack_decoder, pack_linears
    from omni_torch.quantization.quantized_checkpoints import SCALES, VALUES, open_checkpoint
    from omni_torch.quantization.quantized_linear import Int4Linear, Int4WeightLinear, Int8GroupsLinear, quantize_for
    from omni_torch.quantization.scaled_linear import ScaledLinear
    from omni_torch.runners.decoder_model import DecoderModel
    from omni_torch.runners.encoder_cache import EncoderCache
    from omni_torch.runners.frames import FrameStrategy
    from omni_torch.runners.graphs import Graphs, Named
    from omni_torch.runners.model_runner import ARModelRunner, FeedbackARModelRunner
    from omni_torch.runners.spoken_text import SpokenText, SpokenTextRunner
    from omni_torch.runners.transfers import Arriving, to_device
    from omni_torch.sampling.constraints import Constraints, TextConstraint
    from omni_torch.sampling.detokenizer import Detokenizer, Written, text_decoder
    from omni_torch.sampling.logprobs import TokenLogprobs
    from omni_torch.sampling.parameters import as_installed, sampling_parameters, text_parameters
    from omni_torch.sampling.sample import keep_logprobs, sample, sampling_from
    from omni_torch.sampling.seeds import seeded_generator
    from omni_torch.sampling.stop_strings import StopStrings, StopTokens
    from omni_torch.vocoder.frame_transformer import FrameTransformer, FrameWindow, LayerScale
    from omni_torch.vocoder.scheduler import Vocoder, VocoderScheduler
    from omni_torch.vocoder.sound_decoder import CausalConv, SoundDecoder

__all__ = [
    # Model runners, and what they share
    "ARModelRunner", "FeedbackARModelRunner", "FrameStrategy", "EncoderCache", "Graphs", "Named", "Arriving",
    "to_device", "extend", "indices", "packed_batch", "prompt_runs", "sampled_rows", "KeyValues", "DecoderModel",
    "SpokenText", "SpokenTextRunner",
    # Schedulers: work in steps, sound, and loops of one's own
    "StepScheduler", "Vocoder", "VocoderScheduler", "EngineScheduler", "AutoregressiveLoop", "LoopedScheduler",
    "StepResult", "run_batch", "PagedSequences",
    # Sampling: parameters of requests, and where a text ends
    "sampling_parameters", "text_parameters", "as_installed", "Constraints", "TextConstraint", "TokenLogprobs",
    "sample", "keep_logprobs", "sampling_from", "seeded_generator", "StopStrings", "StopTokens", "Detokenizer", "Written",
    "text_decoder",
    # Checkpoints: folders, the hub, and their files
    "LARGEST_TEXT", "Section", "checked_file", "load_checked", "read_json", "origin_of", "read_tokenizer", "written_once",
    "config_folder", "download", "listing", "INDEX", "SINGLE", "TensorInfo", "DEFAULT", "FILE", "TOOLS",
    "read_templates", "check_length", "encoded", "longest_token", "random_checkpoint",
    # Weights: read into modules, and prepared for later starts
    "Checkpoint", "PartOf", "Source", "Sources", "embedding", "load_module", "prefixed", "whole", "GgufCheckpoint",
    "open_checkpoint", "SCALES", "VALUES", "file_identity", "filled_on", "keeps_bfloat16", "kept_as_stored", "load_prepared",
    # Linear layers with packed and quantised weights
    "Pack", "pack", "pack_decoder", "pack_linears", "return_freed_memory", "ScaledLinear", "Int4Linear", "Int4WeightLinear",
    "Int8GroupsLinear", "quantize_for", "UNIT",
    # Operations, which installed kernels compute
    "operation", "add_rms_norm", "norm_rotary", "norm_rotary_store", "rms_norm", "rotary", "snake_conv",
    "CodeChoice", "FramePredictor", "code_frames", "MOST_ROWS", "DecoderStack", "LayerWeights", "MixtureWeights",
    "decode_layers", "prefill_layers", "DecoderStep", "DescribeLayer", "all_layers", "experts", "one_by_one",
    "route_experts", "GROUP", "FewRowsLinear", "Groups", "Matrix", "few_rows_linear", "matrix_of", "stored_linear",
    "ConvNeXt", "Convolution", "Layer", "Residual", "Snake", "SoundStack", "Upsampling", "decode_sound", "memory_of",
    "paged_decode", "RMSNorm",
    # Modules of decoders of sound
    "CausalConv", "FrameTransformer", "FrameWindow", "LayerScale", "SoundDecoder",
    # Placement: options, budgets of memory, and the work of a request
    "DTYPES", "check_options", "LIBRARIES", "CacheShape", "Network", "device_of", "place", "Ask", "DecoderWork",
    "PassWork", "PipelineWorks", "StageWork", "Work", "sound_decoder",
    # Ranks in step
    "ALONE", "Part", "TensorParallel", "random_of",
]  # fmt: skip

_HOMES = {
    "omni_torch.checkpoints.chat_templates": "DEFAULT FILE TOOLS read_templates",
    "omni_torch.checkpoints.default": "random_checkpoint",
    "omni_torch.checkpoints.folders": (
        "LARGEST_TEXT Section checked_file load_checked origin_of read_json read_tokenizer written_once"
    ),
    "omni_torch.checkpoints.gguf_checkpoints": "GgufCheckpoint",
    "omni_torch.checkpoints.headers": "INDEX SINGLE TensorInfo",
    "omni_torch.checkpoints.hub": "config_folder download listing",
    "omni_torch.checkpoints.prepared": "file_identity filled_on keeps_bfloat16 kept_as_stored load_prepared",
    "omni_torch.checkpoints.tokens": "check_length encoded longest_token",
    "omni_torch.checkpoints.weights": "Checkpoint PartOf Source Sources embedding load_module prefixed whole",
    "omni_torch.engine.attention.decode": "paged_decode",
    "omni_torch.engine.key_values": "KeyValues",
    "omni_torch.engine.scheduler": "EngineScheduler",
    "omni_torch.engine.sequences": "PagedSequences",
    "omni_torch.loop.autoregressive": "AutoregressiveLoop LoopedScheduler StepResult run_batch",
    "omni_torch.loop.continuation": "extend",
    "omni_torch.loop.packing": "indices packed_batch prompt_runs sampled_rows",
    "omni_torch.loop.steps": "StepScheduler",
    "omni_torch.operations.code_frames": "CodeChoice FramePredictor code_frames",
    "omni_torch.operations.decoder_stack": (
        "MOST_ROWS DecoderStack LayerWeights MixtureWeights decode_layers prefill_layers"
    ),
    "omni_torch.operations.decoder_step": "DecoderStep DescribeLayer all_layers",
    "omni_torch.operations.experts": "experts one_by_one route_experts",
    "omni_torch.operations.few_rows": "GROUP FewRowsLinear Groups Matrix few_rows_linear matrix_of stored_linear",
    "omni_torch.operations.kernels": "operation",
    "omni_torch.operations.norm": "RMSNorm",
    "omni_torch.operations.shared": "add_rms_norm norm_rotary norm_rotary_store rms_norm rotary snake_conv",
    "omni_torch.operations.sound_stack": (
        "ConvNeXt Convolution Layer Residual Snake SoundStack Upsampling decode_sound memory_of"
    ),
    "omni_torch.placement.budgets": "LIBRARIES CacheShape Network",
    "omni_torch.placement.devices": "device_of place",
    "omni_torch.placement.pipeline_options": "DTYPES check_options",
    "omni_torch.placement.work": "Ask DecoderWork PassWork PipelineWorks StageWork Work sound_decoder",
    "omni_torch.processes.tensor_parallel": "ALONE Part TensorParallel random_of",
    "omni_torch.quantization.coded_weights": "UNIT",
    "omni_torch.quantization.packed_linear": "Pack pack pack_decoder pack_linears",
    "omni_torch.processes.freed_memory": "return_freed_memory",
    "omni_torch.quantization.quantized_checkpoints": "SCALES VALUES open_checkpoint",
    "omni_torch.quantization.quantized_linear": "Int4Linear Int4WeightLinear Int8GroupsLinear quantize_for",
    "omni_torch.quantization.scaled_linear": "ScaledLinear",
    "omni_torch.runners.decoder_model": "DecoderModel",
    "omni_torch.runners.encoder_cache": "EncoderCache",
    "omni_torch.runners.frames": "FrameStrategy",
    "omni_torch.runners.graphs": "Graphs Named",
    "omni_torch.runners.model_runner": "ARModelRunner FeedbackARModelRunner",
    "omni_torch.runners.spoken_text": "SpokenText SpokenTextRunner",
    "omni_torch.runners.transfers": "Arriving to_device",
    "omni_torch.sampling.constraints": "Constraints TextConstraint",
    "omni_torch.sampling.detokenizer": "Detokenizer Written text_decoder",
    "omni_torch.sampling.logprobs": "TokenLogprobs",
    "omni_torch.sampling.parameters": "as_installed sampling_parameters text_parameters",
    "omni_torch.sampling.sample": "keep_logprobs sample sampling_from",
    "omni_torch.sampling.seeds": "seeded_generator",
    "omni_torch.sampling.stop_strings": "StopStrings StopTokens",
    "omni_torch.vocoder.frame_transformer": "FrameTransformer FrameWindow LayerScale",
    "omni_torch.vocoder.scheduler": "Vocoder VocoderScheduler",
    "omni_torch.vocoder.sound_decoder": "CausalConv SoundDecoder",
}
"""By module, the names that come from it."""

if not TYPE_CHECKING:  # or checkers would take any name for one of this module
    __getattr__ = exports(__name__, _HOMES)
