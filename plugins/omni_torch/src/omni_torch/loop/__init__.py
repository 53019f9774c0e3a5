"""The loop of an autoregressive stage, and of stages that take many steps of one kind: messages in, steps, messages out."""
