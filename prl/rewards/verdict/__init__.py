"""Whether two written answers mean the same: read into shapes, compared by named rules, with no symbolic library.

text.py  one spelling  ->  shape.py  lists, intervals, matrices, equations  ->  syntax.py, value.py  formulas, values
units.py  what a number counts    comparison.py  two shapes    choices.py  letters    same.py  the verdict, and why
"""
