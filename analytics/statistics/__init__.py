"""Sums, quantiles and confidence limits that stream.

In: values with the number of their cell. Out: exact sums, sketches of quantiles, bootstrap limits.
Must not know: what the values mean, or where they come from.
"""
