"""Tools for networks: state dicts, modes, precision, batch-norm, non-finite values and Grad-CAM."""
