"""The built distributions, and the versions that the project declares."""
