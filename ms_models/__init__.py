"""Native MindSpore models and the runner that trains them. Imports neither torch nor `migrate`."""
