"""When are the words of a known text heard in a sound? By a CTC model, as a stage behind a voice."""
