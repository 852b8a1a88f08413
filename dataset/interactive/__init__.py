"""Comforts of Python: names that are loaded when asked for, and tokens in notebooks.

In: packages and tokens. Out: their names, HTML. Must not know: how tokens are made, stored or scored.
"""
