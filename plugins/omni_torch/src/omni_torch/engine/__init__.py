"""The autoregressive engine: paged KV cache, continuous batching, chunked prefill, preemption."""
