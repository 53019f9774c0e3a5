"""Kernels in Triton for the operations of :mod:`omni_core.model_runner.operations` and :mod:`omni_engine`."""
