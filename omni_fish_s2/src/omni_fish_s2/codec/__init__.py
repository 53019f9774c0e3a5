"""The codec: converts 44.1 kHz sound to frames of codes and back, causally, in chunks of any size."""

SAMPLE_RATE = 44_100
"""Hz."""
