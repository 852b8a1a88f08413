"""Two datasets side by side.

In: the scores of a teacher and a student. Out: every measure by group, with limits, noise and confidence.
Must not know: engines, or how tables are printed.
"""
