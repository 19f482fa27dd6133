"""Where values go: who else holds a tensor, what statements read and write, what computes a loss."""
