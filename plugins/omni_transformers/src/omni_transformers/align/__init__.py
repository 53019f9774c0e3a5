"""Find when the words of a known text are heard in a sound: by a CTC model, in a stage behind a voice."""
