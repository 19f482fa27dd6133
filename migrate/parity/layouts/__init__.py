"""The MindSpore side of a comparison on several ranks: launched, captured rank by rank, put together."""
