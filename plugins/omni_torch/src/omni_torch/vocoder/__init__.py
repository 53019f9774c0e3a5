"""The scheduler of a vocoder: frames of codes in, a stream of sound out, in time for whoever listens."""
