"""bundle to tokens: the runtime."""
