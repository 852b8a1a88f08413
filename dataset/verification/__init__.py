"""Finished parts held against the plan, and those that do not fit set aside.

In: the folder of a dataset, finished or not. Out: what is wrong with which part. Must not know: how rows
are made.
"""
