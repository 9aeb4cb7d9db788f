"""The exact best clips of a query: `ranking` finds them, with proof.

`blocks` holds what scores read of stored clips, and limits how large a score can be; `clip_facts` tells which clips a
filter leaves.
"""
