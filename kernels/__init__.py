"""One file per kernel: its declaration and its reference."""
