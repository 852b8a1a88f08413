"""Results to a terminal, JSON or CSV.

In: reports of the rooms. Out: text on stdout, notes on stderr.
Must not know: options, or how a result was computed.
"""
