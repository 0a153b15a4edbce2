"""Attacks with an ask/tell interface, and the driver that runs them over many examples."""
