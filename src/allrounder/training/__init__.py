"""Training: the loop, its setup, checkpoints, run folders, pipelines and cost estimates."""
