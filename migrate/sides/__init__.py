"""What one side of a comparison does: builds modules of a repository from recipes, in PyTorch or in MindSpore."""
