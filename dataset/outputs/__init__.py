"""Outputs as a whole: how far they are, grown by inputs, and put together.

In: folders of datasets. Out: numbers of parts and tokens, and datasets with the parts of others.
Must not know: how rows are made.
"""
