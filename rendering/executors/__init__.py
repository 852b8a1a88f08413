"""Where the parts of a run are worked on: processes of this machine.

In: work that a process can be given, and the parts that are open. Out: parts in place, and counts of what was
done. Must not know: what the work is, so that scoring hands its own in.

Every executor runs the same loop over claimed parts (replica.py); none holds rows.
"""
