"""The codec of 12.5 frames per second: its config, the decoder from codes to sound, and the encoder of recordings."""
