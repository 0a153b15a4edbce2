"""The command line: one file per verb. Commands import what needs torch when they run, so that help,
completion, lists and tables start fast."""
