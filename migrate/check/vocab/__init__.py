"""Gives a checkpoint as many embedding rows as its tokenizer needs."""
