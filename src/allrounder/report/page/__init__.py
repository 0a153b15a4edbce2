"""The report as one self-contained page: a template with its style and script, and what they show."""
