"""The page of a run: what its folder holds, served to a browser and to nobody who may not look.

Invariants:

- Everything is read from the files of run folders; the one thing asked of a run that goes on is its ``/status``.
- Nothing here runs in the process of a run but ``beside.py``, which holds a socket and starts a child when somebody
  knocks.
- Files are never trusted: they grow, are cut by a resume, vanish, hold half a line, a line that is too long or none of
  JSON. What was passed over is counted and told.
"""
