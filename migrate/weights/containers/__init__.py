"""Containers: checkpoints as files on disk, read into tensors made of atoms and laid out from them."""
