"""Dataset files on disk: catalogue, cache, downloads, archives and integrity checks."""
