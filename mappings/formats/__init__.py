"""On-disk contracts shared by the converter, the checks and the runner."""
