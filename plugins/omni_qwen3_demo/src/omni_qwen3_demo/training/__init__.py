"""Makes the checkpoint from nothing: data, three trainings, the judge. ``python -m omni_qwen3_demo.training FOLDER``."""
