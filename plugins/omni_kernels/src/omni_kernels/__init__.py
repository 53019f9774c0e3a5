"""Kernels in Triton for the operations of :mod:`omni_torch.operations.shared` and :mod:`omni_torch.engine`."""
