"""What is known about both worlds, as data: families, APIs, layouts and on-disk formats.

Everything else reads from here; nothing here imports torch, mindspore, `migrate` or `ms_models`.
"""
