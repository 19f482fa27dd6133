"""Table of the parameters and buffers of converted modules: names, shapes and layout for a weight converter."""
