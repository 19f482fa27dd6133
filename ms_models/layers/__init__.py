"""Layers that model families share: norm, rotary positions, attention."""
