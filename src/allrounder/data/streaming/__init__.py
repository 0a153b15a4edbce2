"""Images that stay in their files and are decoded when needed, ahead of time by other processes."""
