"""Stage C: both sides train from the same weights on the same batches; the curves are held against PyTorch's own."""
