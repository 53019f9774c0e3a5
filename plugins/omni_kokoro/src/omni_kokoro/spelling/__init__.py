"""Pronunciation of texts: words with their phonemes, in the letters that Kokoro has learnt."""
