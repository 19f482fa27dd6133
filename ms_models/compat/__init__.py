"""Helpers that converted code takes along where no single MindSpore call has torch's meaning.

Each file imports only mindspore, numpy, the standard library and its siblings; `msmigrate code` copies the files a
repository needs into its output as the package `ms_compat`.
"""
