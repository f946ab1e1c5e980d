r"""The words of formulas: what is a token, a function, a letter, and what makes a text no formula."""

from __future__ import annotations

import re


def _commands(names: str) -> frozenset[str]:
    return frozenset("\\" + name for name in names.split())


TOKEN = re.compile(r"\s*(\\[a-zA-Z]+|\\.|\d+\.?\d*|\.\d+|\*\*|[^\s])")
FUNCTIONS = _commands("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp")
GREEK = _commands(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell"
)
BEGIN_AN_ATOM = GREEK | FUNCTIONS | _commands("pi frac sqrt binom infty lfloor lceil")
NO_FORMULA = _commands("text emptyset checkmark ldots forall exists") | {"\\{", "\\}", "\\%", "\\$", "\\&"}
"""Words and marks: what holds one is not asked of a symbolic library, which might read what is left of it."""
