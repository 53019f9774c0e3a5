"""The codec: 44.1 kHz sound to frames of codes and back, causal in both directions, in chunks of any size."""

SAMPLE_RATE = 44_100
"""Hz."""
