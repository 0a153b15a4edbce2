"""Readers of datasets: published ones in the formats of their authors, and custom files."""
