"""Models of transformers as pipelines: read from a checkpoint's config, without code for each model."""
