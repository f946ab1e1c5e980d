"""A report of runs to put into a paper or a pull request: one HTML file without script, and a picture.

Invariants:

- The file holds everything: no script, no request to anywhere, and a policy that lets a browser make none.
- Whatever a run, a prompt or a model wrote is text: escaped, and without characters that turn or hide others.
- Nothing is shown that was not recorded.
"""
