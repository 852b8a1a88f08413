"""Bytes to records.

In: paths, plain, compressed or Parquet. Out: planned parts, and records with the line that each came from.
Must not know: templates, tokenizers, or who owns a token.
"""
