"""Rows of one dataset by role, field, position or metadata.

In: a dataset and what to group by. Out: counts and statistics of every group.
Must not know: a second dataset, engines, or how tables are printed.
"""
