"""Whether two written answers mean the same: read into shapes, compared by named rules, with no symbolic library.

text.py  one spelling  ->  shape.py  lists, intervals, matrices, equations  ->  formula.py, number.py  values
units.py  what a number counts                                                  same.py  the verdict, and why
"""
