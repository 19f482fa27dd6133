"""The tools: convert code and checkpoints, check configurations, prove parity, report.

Nothing here imports torch or mindspore at module level.
"""
