"""Commands about outputs as such: how far one is, whether it is right, and several put together.

In: folders of datasets. Out: tables on stdout, and an exit code. Must not know: how rows are made.
"""
