"""One conversation in a terminal.

In: a scored conversation and the texts of its tokens. Out: lines of a width, or a line a token.
Must not know: how datasets are read, or what a metric means.
"""
