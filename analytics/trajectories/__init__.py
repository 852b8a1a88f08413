"""Turns and branches, and the limits that would have stopped them.

In: traces of recorded or rendered conversations. Out: counts by branch, and where a limit is reached.
Must not know: scores or engines.
"""
