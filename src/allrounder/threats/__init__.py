"""What an attacker may change: norms, and threats (a norm and a budget)."""
