"""Datasets on disk, and the words that all rooms share.

In: rendered tokens, score columns, a directory. Out: Parquet tables and the manifest, written and read whole.
Must not know: templates, tokenizers, engines, or what is computed from a table.
"""
