"""Time and room that a scoring run takes, told before it is begun.

In: a plan, and its engine where the rate is to be measured. Out: tokens a second, and seconds on so many
replicas. Must not know: what is printed of it.
"""
