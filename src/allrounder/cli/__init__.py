"""The command line: `NAME.py` declares options, `run_NAME.py` imports torch and does the work, so that help,
completion, lists and tables start fast."""
