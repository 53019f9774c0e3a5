"""Shared building blocks of omni models in PyTorch. Importing the package imports no torch; its modules do."""
