"""The networks: phonemes and a voice's vector in, durations, pitch and sound out (StyleTTS 2, with an iSTFTNet)."""
