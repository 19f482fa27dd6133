"""Two small files to paste into training scripts; each stands alone and needs numpy and its framework only."""
