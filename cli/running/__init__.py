"""What commands share that run an engine.

In: the options of a command. Out: finished datasets. Must not know: how an engine works, or how a result is
printed.
"""
