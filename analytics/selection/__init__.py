"""Conversations chosen by their numbers, and the records that they came from.

In: datasets, and the files they were made from. Out: the records that are kept, as they were.
Must not know: how tokens were scored, or how a result is printed.
"""
