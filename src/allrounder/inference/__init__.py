"""The copy of a network that attacks run on: batch-norm folded into convolutions, in eval mode."""
