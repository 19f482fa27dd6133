"""Containers: checkpoints as files on disk, read into and laid out from tensors made of atoms. One file per container."""
