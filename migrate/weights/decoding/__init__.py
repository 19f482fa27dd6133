"""Values that no checkpoint holds as they are: 8- and 4-bit floats and their scales, decoded row by row."""
