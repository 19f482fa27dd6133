"""`msmigrate ladder`: the same training on 1, 2, 4, 8 ... ranks, each rung held against the one before."""
