"""Fish Audio S2-Pro: text to speech with voice cloning."""
