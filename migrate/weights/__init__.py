"""Checkpoint conversion by byte ranges: Hugging Face directories to per-rank files and back, with proof.

Plan from headers alone, prove that the plan is exact, then copy. No torch, no mindspore, no arithmetic on weights.
"""
