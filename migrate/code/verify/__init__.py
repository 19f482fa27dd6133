"""`--verify`: the only part of the converter that runs code of the repository, in processes of its own."""
