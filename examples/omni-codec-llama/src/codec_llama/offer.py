"""The offer of a checkpoint. Imports neither torch nor transformers."""

from omni_core.api import Parameter
from omni_transformers.api import Offer, Speaks

PARAMETERS = [
    Parameter("temperature", "number", "0 is greedy", 1.0, minimum=0, maximum=10),
    Parameter("max_new_tokens", "integer", "longest speech, in codes", 700, minimum=7, maximum=100_000),
]


def claims(config):
    return config.get("architectures") == ["LlamaForCausalLM"] and "speech_codes" in config


def offer(source):
    codes = source.config["speech_codes"]
    return Offer(codes["sample_rate"], PARAMETERS, codes["voices"])


SPEAKS = Speaks("codec_llama.speaker:CodecLlama", offer, shares=True)
