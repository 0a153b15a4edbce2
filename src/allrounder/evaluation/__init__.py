"""Evaluation: probes, the runner that attacks images, the result store, corruptions and the preflight."""
