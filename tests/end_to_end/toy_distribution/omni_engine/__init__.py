"""Shadows the engine, so that an import of it fails."""

raise ImportError("omni_torch.engine must not be imported")
