"""NCCL relay for omni: torch.distributed point to point, nccl between GPUs and gloo between CPUs."""
