"""The copy engine: from tensors that exist to tensors that shall exist, planned, proved, copied, resumable."""
