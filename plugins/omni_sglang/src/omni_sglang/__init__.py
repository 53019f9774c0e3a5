"""SGLang's scheduler behind omni's contract: continuous batching, radix cache, retraction."""
