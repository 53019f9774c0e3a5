"""Registers the adapter. Imports neither torch nor transformers."""

from omni_core.api import hookimpl
from omni_transformers.api import AdapterComponent


@hookimpl
def omni_transformers_adapters():
    return [
        AdapterComponent(
            "codec-llama",
            "codec_llama.offer:SPEAKS",
            "a Llama that writes codes of sound",
            claims="codec_llama.offer:claims",
        )
    ]
