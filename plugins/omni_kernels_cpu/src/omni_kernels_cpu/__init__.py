"""Compiled CPU kernels for omni's shared operations. Nothing here is public but the entry point."""
