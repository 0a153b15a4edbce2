"""Configuration: from TOML tables to frozen values, with times and schedules."""
