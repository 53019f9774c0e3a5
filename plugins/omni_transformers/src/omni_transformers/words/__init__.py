"""Models that write text, from text, sound and pictures."""
