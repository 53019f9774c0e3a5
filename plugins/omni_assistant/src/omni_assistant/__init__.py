"""An assistant to talk to: a recogniser, a language model and a voice of one's choice, composed as one pipeline."""
