"""Which process works on which part of a dataset, and which of two that wrote one part is the writer.

In: the output folder of a run, and the index of a part. Out: a claim, or who else has the part; the right to
put a part in place. Must not know: what is written into a part, or how.

`claims/` lies beside manifest.json while parts are open. A claim is a hint that saves work; that the files of
a part are in place is what makes it done, whatever claims say.
"""
