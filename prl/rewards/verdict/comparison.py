r"""Two shapes under a policy: whether they are the same, and in what they differ.

What may be decided either way is ``policy.py``; everything else is fixed:

- One value is never several: an answer that offers more or fewer values than the right one is wrong.
- ``x = 5`` is 5 where the other side states no symbol. Equations are the same where one is a multiple of the other.
- Values without order match in any; a list without brackets takes the order of a tuple when it is compared with one.
"""

from __future__ import annotations

import mpmath

from prl.rewards.verdict.kinds import Based, Bracketed, Matrix, Relation, Scalar, Several, Shape, Words
from prl.rewards.verdict.node import Node, number
from prl.rewards.verdict.operations import Number, real
from prl.rewards.verdict.outcome import Outcome
from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.relations import apart_from
from prl.rewards.verdict.value import agree, close, same, symbols


class Comparison:
    """Two shapes under a policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def outcome(self, right: Shape, given: Shape) -> Outcome:
        """The verdict with its reason."""
        if self.equal(right, given):
            return Outcome(1.0, "same_value", "it means the same")
        if isinstance(given, Several) and not isinstance(right, Several | Bracketed):
            return Outcome(0.0, "several_values", f"it offers {len(given.items)} values where one is right")
        if isinstance(right, Several) and isinstance(given, Several) and len(right.items) != len(given.items):
            detail = f"it offers {len(given.items)} values where {len(right.items)} are right"
            return Outcome(0.0, "several_values", detail)
        if isinstance(right, Scalar) and isinstance(given, Scalar) and self._differ_in_unit(right, given):
            return Outcome(0.0, "other_unit", "its unit is another one")
        if type(right) is not type(given):
            kinds = type(given).__name__.lower(), type(right).__name__.lower()
            return Outcome(0.0, "other_kind", f"it is a {kinds[0]} where a {kinds[1]} is right")
        return Outcome(0.0, "other_value", "it means something else")

    def equal(self, right: Shape, given: Shape) -> bool:  # noqa: C901, PLR0911, PLR0912 - a case a pair of kinds
        """Whether both mean the same. Raises UnreadableError."""
        match right, given:
            case (Words(), Words()):
                return right.letters == given.letters
            case (Scalar(), Scalar()):
                return self._scalars(right, given)
            case (Based(), Based()):
                same_base = right.base == given.base or self._policy.bases == "value"
                return same_base and right.value == given.value
            case (Based(), Scalar()):
                return self._based(right, given)
            case (Scalar(), Based()):
                return self._based(given, right)
            case (Relation(sign="="), Relation(sign="=")):
                return self._equations(right, given)
            case (Relation(sign="!="), Several()):
                return (beside := apart_from(right)) is not None and self.equal(beside, given)
            case (Several(), Relation(sign="!=")):
                return self.equal(given, right)
            case (Relation(), Relation()):
                return right.sign == given.sign and self._inequalities(right, given)
            case (Relation(sign="="), _) if not isinstance(given, Bracketed) or not isinstance(right.right, Scalar):
                return _names(right.left) and self.equal(right.right, given)
            case (_, Relation(sign="=")):
                return _names(given.left) and self.equal(right, given.right)
            case (Several(), Several()):
                return self._match(right, given)
            case (Bracketed(), Bracketed()):
                same_brackets = (right.opening, right.closing) == (given.opening, given.closing)
                return (same_brackets or len(right.items) > 2) and self._in_order(right.items, given.items)  # noqa: PLR2004
            case (Several(is_set=False), Bracketed()):
                return _is_closed_alike(given) and self._in_order(right.items, given.items)
            case (Bracketed(), Several(is_set=False)):
                return _is_closed_alike(right) and self._in_order(right.items, given.items)
            case (Matrix(), Matrix()):
                return [len(row) for row in right.rows] == [len(row) for row in given.rows] and all(
                    self._in_order(*rows) for rows in zip(right.rows, given.rows, strict=True)
                )
            case (Matrix(), Bracketed()):
                return self._vector(right, given)
            case (Bracketed(), Matrix()):
                return self._vector(given, right)
            case (Several(items=(item,)), _):
                return self.equal(item, given)
            case (_, Several(items=(item,))):
                return self.equal(right, item)
        return False

    def _scalars(self, right: Scalar, given: Scalar) -> bool:
        if self._quantities(right, given):
            return True
        if right.as_symbols is None and given.as_symbols is None:
            return False
        return self._quantities(_in_symbols(right), _in_symbols(given))

    def _quantities(self, right: Scalar, given: Scalar) -> bool:
        if self._differ_in_unit(right, given):
            return False
        one, other = right.formula, given.formula
        if right.unit and given.unit and self._policy.units != "ignored":
            one, other = _times(one, right.unit.factor), _times(other, given.unit.factor)
        if one.op == other.op == "symbol" and one.name.upper() == other.name.upper() and len(one.name) == 1:
            return True
        if right.percent == given.percent:
            return same(one, other, self._policy.relative_tolerance)
        if self._policy.percent == "either" and same(one, other, self._policy.relative_tolerance):
            return True
        hundredth = Node("number", value=number(1).value / 100)
        one = Node("*", (one, hundredth)) if right.percent else one
        other = Node("*", (other, hundredth)) if given.percent else other
        return same(one, other, self._policy.relative_tolerance)

    def _differ_in_unit(self, right: Scalar, given: Scalar) -> bool:
        if self._policy.units == "ignored":
            return False
        if right.unit is None or given.unit is None:
            return self._policy.units == "required" and right.unit is not given.unit
        return right.unit.dimensions != given.unit.dimensions

    def _based(self, based: Based, scalar: Scalar) -> bool:
        shown = based.base == 10 or self._policy.bases == "value"  # noqa: PLR2004
        return shown and self._scalars(Scalar(number(based.value)), scalar)

    def _equations(self, right: Relation, given: Relation) -> bool:
        if right.left == given.left or (_names(right.left) and _names(given.left) and _is_function(right.left)):
            return self.equal(right.right, given.right)
        if not isinstance(right.right, Scalar) or not isinstance(given.right, Scalar):
            return False
        return self._proportional(right, given, positive=False)

    def _inequalities(self, right: Relation, given: Relation) -> bool:
        return self._proportional(right, given, positive=right.sign != "!=")

    def _proportional(self, right: Relation, given: Relation, *, positive: bool) -> bool:
        """Whether one side less the other is, in both, the same but for a constant factor."""
        assert isinstance(right.right, Scalar)
        assert isinstance(given.right, Scalar)
        one = Node("-", (right.left, right.right.formula))
        other = Node("-", (given.left, given.right.formula))
        if symbols(one) != symbols(other) or not symbols(one):
            return False
        ratios = []

        def accept(a: Number, b: Number) -> bool:
            if a == 0 or b == 0:
                return bool(a == b)
            ratio = real(b) / real(a)
            ratios.append(ratio)
            return close(ratio, ratios[0], 0.0) and not (positive and bool(ratio < 0))

        with mpmath.workdps(40):
            return agree(sorted(symbols(one)), one, other, False, accept)

    def _match(self, right: Several, given: Several) -> bool:
        """Whether each value of either is one of the other."""
        rights, givens = self._distinct(right.items), self._distinct(given.items)
        if len(rights) != len(givens):
            return False
        for item in rights:
            found = next((index for index, other in enumerate(givens) if self.equal(item, other)), None)
            if found is None:
                return False
            del givens[found]
        return True

    def _distinct(self, items: tuple[Shape, ...]) -> list[Shape]:
        kept: list[Shape] = []
        for item in items:
            if not any(item == other or self.equal(item, other) for other in kept):
                kept.append(item)
        return kept

    def _in_order(self, rights: tuple[Shape, ...], givens: tuple[Shape, ...]) -> bool:
        return len(rights) == len(givens) and all(map(self.equal, rights, givens))

    def _vector(self, matrix: Matrix, vector: Bracketed) -> bool:
        entries = [entry for row in matrix.rows for entry in row]
        is_vector = len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows)
        return is_vector and self._in_order(tuple(entries), vector.items)


def _times(node: Node, factor: object) -> Node:
    return Node("*", (node, Node("number", value=factor)))  # type: ignore[arg-type]


def _in_symbols(scalar: Scalar) -> Scalar:
    return scalar if scalar.as_symbols is None else Scalar(scalar.as_symbols, None, scalar.percent)


def _names(left: Node) -> bool:
    """Whether the left side only gives the value a name."""
    return left.op == "symbol"


def _is_function(left: Node) -> bool:
    return "(" in left.name


def _is_closed_alike(brackets: Bracketed) -> bool:
    """``(...)`` or ``[...]``: no half-open interval."""
    return (brackets.opening, brackets.closing) in (("(", ")"), ("[", "]"))
