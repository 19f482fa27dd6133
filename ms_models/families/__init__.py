"""Model families: one folder each, on a common base."""
