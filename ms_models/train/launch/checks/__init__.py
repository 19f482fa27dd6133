"""What can be checked of a run without a device and without starting a process, a file for each subject.

A check raises a `UserError`, or returns what is worth saying. Nothing here imports MindSpore.
"""
