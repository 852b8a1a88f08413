"""Token ids that somebody else recorded, given their owners.

In: a branch of a trace with its ids. Out: the same ids, attributed where the template's own text confirms it.
Must not know: input formats or files.
"""
