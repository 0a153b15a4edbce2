"""Files, processes, signals, memory and progress: what the package needs of the operating system."""
