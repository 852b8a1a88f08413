"""Tables of groups of tokens.

In: a report of a comparison. Out: its tables or CSV on standard output, and notes.
Must not know: how its numbers are made, or how wide a terminal is.
"""
