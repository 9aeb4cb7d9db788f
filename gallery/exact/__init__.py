"""The exact best clips of a query: `ranking` finds them, `screening` and `device_search` prove them.

`blocks` holds what scores read of stored clips, `codes` their vectors in eight bits; `cone` and `bounds` limit how
large a score can be. Nothing is imported here, because the columns on disk need only `codes`.
"""
