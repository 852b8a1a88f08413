"""Libraries that commands import, and what of them they do without.

In: the libraries that are installed. Out: the same, imported in less time.
Must not know: conversations, tokens, datasets.
"""
