"""Operations with a reference in PyTorch, and the kernels that may run in their place."""
