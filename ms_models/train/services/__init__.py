"""What accompanies the loop of a run: each service in a file of its own."""
