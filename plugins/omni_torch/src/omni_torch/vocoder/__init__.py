"""The scheduler of a vocoder: frames of codes in, a stream of sound out, in time for whoever listens; and the modules of its networks."""
