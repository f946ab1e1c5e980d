"""``prl doctor``: where engine and trainer disagree about the same tokens, measured cause by cause.

sides.py  one engine and the trainer, alive --> examine.py  asks them --> evidence.py  numbers --> causes.py  findings
"""
