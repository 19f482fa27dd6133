"""What one framework computed, stored so that a process without it can compare."""
