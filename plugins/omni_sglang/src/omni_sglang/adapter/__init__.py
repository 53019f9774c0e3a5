"""The only folder that imports SGLang. Written against exactly one version."""
