"""`msmigrate export`: what a run trained, for Hugging Face or for MindSpore Transformers."""
