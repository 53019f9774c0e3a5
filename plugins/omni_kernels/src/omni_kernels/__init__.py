"""Kernels in Triton for the operations of :mod:`omni_torch.operations` and :mod:`omni_engine`."""
