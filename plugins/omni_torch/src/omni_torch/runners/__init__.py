"""Model runners in PyTorch, and what their steps share: recorded graphs, frames of codes, cached encoder outputs."""
