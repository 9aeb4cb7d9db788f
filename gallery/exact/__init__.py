"""The exact best clips of a query: `ranking` finds them, `screening` and `device_search` prove them.

`blocks` is what scores read of stored clips, `codes` their vectors in eight bits, `cone` and `bounds` how large a
score can be. Nothing is imported here: the columns on disk need `codes` alone.
"""
