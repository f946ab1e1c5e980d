"""``prl doctor``: where engine and trainer disagree about the same tokens, measured cause by cause.

    visit.py     one call: start, examine, show              sides.py    one engine and the trainer, alive
    examine.py   what they are asked --> evidence.py         inputs.py   what prompts, names and files say
    causes.py    evidence --> findings (finding.py)          diagnosis.py   all of them --> one sentence

Numbers are made in ``examine.py`` and judged in ``causes.py``; neither does the other's work.
"""
