"""Turns added to a conversation that is rendered already.

In: rendered tokens and a new answer or message. Out: the same ids with more behind them.
Must not know: input formats, files or datasets on disk.
"""
