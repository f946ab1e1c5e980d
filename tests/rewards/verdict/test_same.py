r"""Verdicts by kind: what is the same answer written otherwise, and what only looks like it."""

from __future__ import annotations

import pytest

from prl.rewards.verdict.same import Policy, verdict

SAME = {
    "fractions": [
        (r"\frac{1}{2}", r"\frac12"), (r"\frac{1}{2}", "1/2"), (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", r"\tfrac{2}{4}"),
        ("1/2", "\u00bd"), (r"-\frac{3}{4}", r"\frac{-3}{4}"), (r"-\frac{3}{4}", r"\frac{3}{-4}"), ("3/4", r"\frac3{4}"),
        ("0.125", "1/8"), ("7", r"\frac{14}{2}"), (r"\frac{7}{3}", r"\displaystyle \frac{7}{3}"), (".5", "0.5"),
        (r"\frac{\frac{1}{2}}{3}", r"\frac16"), ("2", "2."), ("2", "2.0"), ("0", "-0"), ("7", "+7"), ("7", "007"),
    ],
    "decimals": [
        (r"\frac{1}{12}", "0.0833333333333333"), (r"\frac{2}{3}", "0.66666667"), (r"\pi", "3.14159265"),
        (r"\sqrt{2}", "1.41421356"), (r"\frac{1}{7} \cdot 10^{-9}", "1.428571428e-10"), ("0.5", "0.500"),
    ],
    "algebra": [
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"), (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), ("(x+1)^2", "x^2+2x+1"), ("2(x+y)", "2x+2y"), ("ab", "ba"),
        (r"\sqrt{8}", r"2\sqrt{2}"), (r"\sqrt 8", r"2\sqrt2"), (r"\sqrt[3]{27}", "3"), (r"2^{10}", "1024"),
        (r"\sin^2 x + \cos^2 x", "1"), (r"\sin 2x", r"2\sin x\cos x"), (r"\log_2 8", "3"), (r"\ln e^2", "2"),
        (r"\frac{n(n-1)}{2}", r"\binom{n}{2}"), ("(n+1)!", "(n+1) n!"), (r"x^{1/2}", r"\sqrt{x}"), ("5!", "120"),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"e^{x+1}", r"e \cdot e^x"), (r"\tan x", r"\frac{\sin x}{\cos x}"),
        ("3+2i", "2i+3"), ("i^2", "-1"), (r"\frac{1}{1+i}", r"\frac{1-i}{2}"), (r"|{-3}|", "3"), ("x^2", "x*x"), ("x**2", "x^2"),
        (r"\lfloor 3.7 \rfloor", "3"), (r"(-1)^n", r"\cos(n\pi)"), ("(x+1)(x-1)", "x^2-1"), (r"\sqrt(2)", r"\sqrt{2}"),
        (r"\frac{\sqrt3}{2}", r"\sin 60^\circ"), (r"a_1+a_2", "a_2+a_1"), (r"x \cdot y", "xy"), ("sqrt(3)/2", r"\frac{\sqrt{3}}{2}"),
        (r"2\pi r", r"r \cdot 2\pi"), ("f(x)=x^2", "x^2"), (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"), (r"\cos^{-1} 1", "0"),
        ("10^{40}+1", "1+10^{40}"), (r"1.5x", r"\frac{3x}{2}"), (r"\frac{1}{x^{-2}}", "x^2"), (r"4^{\frac{1}{2}}", "2"),
    ],
    "plus-minus": [
        (r"\pm 2021", "2021, -2021"), (r"\pm 2", r"\{-2, 2\}"), (r"x = \pm 2", r"x=2 \text{ or } x=-2"),
        (r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt2"), (r"\pm 3", "\u00b13"), (r"\frac{1 \pm \sqrt{5}}{2}", r"\frac{1+\sqrt5}{2}, \frac{1-\sqrt5}{2}"),
    ],
    "lists": [
        (r"19, 46, \text{ and } 82", "82, 19, 46"), ("1331, 1728", "1728, 1331"), ("7 or 8", r"\{7, 8\}"), ("1,2,3", "1, 2, 3"),
        (r"1, 2, \ldots, n", r"1,2,\dots,n"), (r"\{1,3\}\cup\{2,4\}", r"\{1,2,3,4\}"), ("1, 2", "1 and 2"), (r"\{5\}", "5"),
        (r"a=1 \text{ or } a=-2", r"a=-2 \text{ or } a=1"), (r"a=1 \text{ or } a=-2", r"a \in \{1, -2\}"), (r"a=1 \text{ or } a=-2", "1, -2"),
        ("1;2", "1, 2"), (r"\frac{1}{2}, 3", "3, 0.5"), ("x=1, y=2", "y=2, x=1"), ("2, 2, 3", "2, 3"), ("Bob and Evelyn", r"\text{Evelyn and Bob}"),
    ],
    "intervals": [
        ("0<x<12.5", "(0,12.5)"), ("D=(0,1)", "(0,1)"), ("[0,1)", r"\left[0,1\right)"), ("x>3", r"(3,\infty)"), (r"x \le 2", r"(-\infty, 2]"),
        (r"0 \leq x < 1", "[0,1)"), (r"x \in (0,1)", "(0,1)"), (r"(-\infty,-2)\cup(2,\infty)", r"x<-2 \text{ or } x>2"), ("12.5 > x > 0", "(0, 25/2)"),
        (r"(-\infty,\infty)", r"\mathbb{R}"), (r"x \ne 2", "2 \\neq x"), ("2x > 6", "x - 3 > 0"), (r"[0,1]\cup[2,3]", r"[2,3]\cup[0,1]"),
        (r"\left(-\infty, \frac{1}{2}\right]", r"x \leq 0.5"),
    ],
    "tuples": [
        (r"(3,\frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)"), (r"(1,\frac{9}{2})", "(1,4.5)"), ("0,1", "(0,1)"), ("(0,1)", "0, 1"), ("(1,2)", "x=1, y=2"),
        ("(1,2,3)", "[1,2,3]"), ("(x,y)=(1,2)", "(1,2)"), (r"\langle 1,2\rangle", "(1,2)"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"), ("(5)", "5"),
        ("(1,2),(3,4)", "(3,4), (1,2)"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \\ \end{bmatrix}"),
        (r"\begin{pmatrix}\frac12&0\end{pmatrix}", r"(\begin{pmatrix}0.5&0\end{pmatrix})"), (r"A=\begin{pmatrix}1\end{pmatrix}", r"\begin{pmatrix}1\end{pmatrix}"),
    ],
    "equations": [
        ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}"), ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"), ("5", "x=5"), ("x=5", "5"), ("y=2x+1", "2x+1"),
        ("y=2x+1", "y=1+2x"), ("y=2x+1", "2x+1=y"), ("x^2+y^2=4", "y^2+x^2-4=0"), ("x = 2+3 = 5", "5"), ("f(x)=2x", "g(x)=2x"), ("5", r"\text{Area} = 5"),
    ],
    "mixed numbers": [
        ("5/4", "1 1/4"), (r"-\frac{7}{2}", r"-3\frac{1}{2}"), ("1.25", r"1\frac14"), ("2.5", "2\u00bd"), (r"3\frac{1}{2}", r"\frac{7}{2}"), ("11/4", "2 3/4 \\text{ cups}"),
    ],
    "percent": [(r"25\%", "0.25"), (r"25\%", "25%"), ("25%", "25 percent"), (r"25\%", r"\frac{1}{4}"), ("25", "25%"), (r"25\%", "25"), (r"12.5\%", "0.125")],
    "thousands": [
        ("115,000", "115000"), ("1{,}000", "1000"), (r"1,\!000", "1000"), (r"1\,000\,000", "1,000,000"), ("1 000", "1000"), ("1,234.5", "1234.5"), ("$1,000", r"\$1000"),
        ("-1,000", "-1000"), ("12,345,678", "12345678"), ("1,000, 2,000", "2000, 1000"), (r"\frac{1,000}{3}", r"\frac{1000}{3}"),
    ],
    "bases": [("52_8", "52_{8}"), ("52_8", "052_8"), (r"1011_2", r"1011_{\text{two}}"), ("2A_{16}", "2a_{16}"), ("42", "42_{10}"), ("52_8", "$52_8$")],
    "units": [
        ("90", r"90^\circ"), (r"90^\circ", "90 degrees"), (r"90^{\circ}", "90"), ("5 \\text{ m}", "5"), ("5", "5 meters"), ("5 m", r"5\,\mathrm{m}"), (r"5 \text{ m}", r"500 \text{ cm}"),
        (r"\$18.90", "18.9"), ("18.90", r"\$18.90"), (r"\$18.90", "18.90 dollars"), ("12 apples", "12"), ("12 apple", "12 apples"), ("60 km/h", r"60 \text{ kilometers per hour}"),
        (r"5 \text{ cm}^2", "5 square centimeters"), ("5 cm^2", r"5 \text{ cm}^{2}"), ("1 hour", "60 minutes"), ("3 ft", "36 inches"), (r"\$5", "500 cents"), ("5cm", r"5\text{ cm}"),
        ("9.8 m/s^2", r"9.8 \text{ m/s}^2"), (r"10\pi \text{ cm}", r"10\pi"), (r"45 \text{ mph}", "45"), ("2 liters", "2000 ml"), (r"\frac{1}{2} \text{ hour}", "30 minutes"), ("\u20ac5", "5"),
    ],
    "scientific": [("100", "1e2"), (r"3\times10^{-5}", "0.00003"), ("1.5e10", r"1.5 \cdot 10^{10}"), ("1.0E+2", "100"), ("3*10^5", "300000"), ("6.02 x 10^23", r"6.02\times 10^{23}"), ("10^-5", "0.00001")],
    "unicode": [("-3", "\u22123"), (r"\sqrt{2}", "\u221a2"), (r"\pi", "\u03c0"), (r"x^2", "x\u00b2"), ("3", "\uff13"), (r"2\times 3", "2\u00d73"), (r"\infty", "\u221e"), (r"x \le 3", "x \u2264 3"), ("x_1", "x\u2081")],
    "words": [
        (r"\text{Evelyn}", "Evelyn"), ("Evelyn", "evelyn."), ("13", r"\text{13}"), ("seven", "7"), ("21", "twenty-one"), ("even", r"\textbf{even}"), ("no solution", r"\text{No solution}"), ("Tuesday", "tuesday"), ("yes", "Yes"),
        ("none", r"\mathrm{none}"), ("305", "three hundred and five"),
    ],
    "choices": [("D", "(D)"), ("(D)", "D"), ("D", r"\text{(D)}"), ("D", r"\textbf{(D)}\ 24"), ("D", "D. 24"), ("B", "B) the second"), ("C", "c"), ("C", "Option C")],
    "boxes and signs": [("5", r"\boxed{5}"), ("5", "$5$"), ("5", r"\(5\)"), ("5", "**5**"), ("5", "5."), (r"\frac{1}{2}", r"\left(\frac{1}{2}\right)"), ("5", "{5}")],
    "undefined": [(r"\text{undefined}", "undefined"), (r"\frac{1}{0}", r"\frac{1}{0}")],
}  # fmt: skip

OTHER = {
    "fractions": [(r"\frac{1}{2}", r"\frac{2}{1}"), ("1/3", "33333333/100000000"), ("1/2", "1/3"), (r"\frac{1}{2}", "1"), (r"\frac{12}{5}", r"\frac1{25}"), (r"\frac{1}{2}", "12")],
    "decimals": [
        (r"\frac{1}{3}", "0.33"), (r"\frac{1}{12}", "0.0833"), (r"\pi", "3.14"), (r"\pi", r"\frac{22}{7}"), ("0.33", "1/3"), (r"\sqrt{2}", "1.41"), ("3.14", r"\pi"), (r"\frac{1}{12}", "0.083"),
        ("5", "5.0001"), ("1000000", "1000000.4"), (r"\frac{\pi}{10^{9}}", "0.000000003"), ("0.5", "0.51"),
    ],
    "exactness": [
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"), ("123456789", "123456788"), ("10^{20}", "10^{20}+1"), ("10^{-10}", "10^{-11}"), ("0", "10^{-12}"), ("1", r"\frac{10^{15}+1}{10^{15}}"),
        ("2^{100}", "2^{100}+1"), (r"10^{-9}", r"2\cdot 10^{-9}"), ("0", "1e-9"), (r"\sqrt{2}", r"\frac{1414213562373095}{1000000000000000}"),
    ],
    "algebra": [
        ("|x|", "x"), (r"\sqrt{x^2}", "x"), ("x^2", "2x"), ("x+1", "x"), ("(x+1)^2", "x^2+1"), ("x", "y"), ("2x", "2y"), ("4", r"4\sqrt(2)"), (r"\sqrt{2}", r"\sqrt{3}"), ("x", "5"), (r"\sin x", r"\cos x"), ("3+2i", "3-2i"),
        ("x^{100}+1", "(x+1)^{3000}"), ("x^{12}", "x^{1}2"), (r"\ln x", r"\log_{10} x"), ("a_1", "a_2"), ("f(x)", "f(y)"), ("2", r"\frac{4}{"), (r"n!", "n"),
    ],
    "plus-minus": [(r"\pm 2021", "2021"), ("2021", r"\pm 2021"), (r"\pm 2", "-2"), (r"\pm 2", "2, 3"), (r"1 \pm \sqrt{2}", r"1+\sqrt{2}")],
    "lists": [
        (r"19, 46, \text{ and } 82", r"21, 36, \text{ and } 82"), ("1331, 1728", "1728"), ("7", "7, 8, 9, 10"), ("7", "7 or 8"), (r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1"), (r"1, 2, \ldots, n", "1, 2, n"),
        (r"a=1 \text{ or } a=-2", "a=1"), ("a=1", r"a=1 \text{ or } a=-2"), (r"\{1,2\}", r"\{1,2,3\}"), ("7", "7 and 8"), ("7", "maybe 7 or 8"), ("7", "7 (or 8)"), ("7", "either 7 or 8"), ("x=1, y=2", "x=2, y=1"), ("1, 2", "12"),
        ("7", "7; 8"), ("7", "7/8 or 7"), ("5", "5, not 6"), ("5", "5 or so"), ("5", "not 5"), ("5", "5 is wrong"),
    ],
    "intervals": [
        ("[0,1)", "[0,1]"), ("D=(0,1)", "D=(0,1.5)"), ("(0,1)", "[0,1]"), ("x>3", r"x \ge 3"), ("x>3", "x<3"), ("x>3", "3"), ("0<x<12.5", "(0,12]"), (r"(-\infty,-2)\cup(2,\infty)", r"(2,\infty)"), ("0<x<1", "x<1"), ("2x>6", "-2x>-6"),
        (r"\{0,1\}", "(0,1)"),
    ],
    "tuples": [("(1,2)", "(2,1)"), ("(1,2)", "(1,2,3)"), ("0,1", "01"), ("(0,1)", "1, 0"), ("(1,2)", "1"), ("(1,2)", "12"), ("[0,1]", "(0,1)")],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"), (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&2&3\end{pmatrix}"),
    ],
    "equations": [("2x+4y-3=0", "2x+4y-4=0"), ("y=2x+1", "y=2x"), ("x=5", "x=6"), ("x=5", "y=5"), ("2x+4y-3=0", "2x+4y-3"), ("x^2=4", "x=2"), (r"\forall x>0, f(x)=0", "f(x)=0"), ("x=5", "x=5, y=6")],
    "mixed numbers": [("10", "4 10/3"), ("3/4", "1 1/4"), ("1 1/4", "1/4"), ("11/4", "1 1/4"), (r"\frac{3}{2}", r"3\frac{1}{2}"), ("40/3", r"4\frac{10}{3}"), ("6", "2 3")],
    "percent": [("0.25", "25"), ("25", "0.25"), (r"25\%", "2.5"), (r"25\%", r"0.25\%"), (r"25\%", "0.0025")],
    "thousands": [("1000", "1, 000"), ("1, 234", "1234"), ("0,123", "123"), ("0,1", "01"), ("1000", "1,00"), ("1,000", "1"), ("12", "1,2"), ("1234", "12,34")],
    "bases": [("52_8", "42"), ("52_8", "52"), ("52_8", "52_9"), ("42", "52_8"), ("52_8", "53_8"), ("52_8", "42_{10}"), ("18_8", "18_9")],
    "units": [
        (r"5 \text{ m}", r"5 \text{ cm}"), ("5 m", "5 s"), (r"5 \text{ cm}^2", r"5 \text{ cm}"), ("5 apples", "5 oranges"), ("5 m", "50 cm"), ("60 km/h", "60 m/s"), ("1 hour", "1 minute"), (r"\$5", "5 cents"), ("5", "5m"), ("5 meters", "6"),
        (r"\$5", "\u20ac5"), ("5 kg", "5 lb"), ("90^\\circ", "45^\\circ"),
    ],
    "scientific": [("100", "1e3"), (r"3\times10^{-5}", "0.0003"), (r"3\times10^{5}", r"3\times10^{-5}")],
    "words": [("listen", "silent"), ("Evelyn", "Eve"), ("Evelyn", "Evelyn or Bob"), ("even", "odd"), ("yes", "no"), ("7", "eight"), ("no solution", "0"), ("Evelyn", "5"), ("no solution", "solution"), ("not even", "even"), ("Evelyn", "not Evelyn")],
    "choices": [("D", "A"), ("D", "(A)"), ("D", "A or D"), ("D", "D or A"), ("D", "(D) or (A)"), ("D", "A. D"), ("D", "ABCD"), ("D", "A, D")],
    "undefined": [(r"\frac{2}{0}", r"\frac{1}{0}"), (r"\frac{1}{0}", r"\infty"), ("0", r"\frac{0}{0}"), (r"\infty", r"-\infty"), (r"\infty", "1000")],
    "unreadable": [("7", r"\frac{7}{"), ("7", "{7"), ("7", "7)"), ("7", r"\foo 7"), ("7", "7 +"), ("7", ""), ("7", "= 7 ="), ("2", "2 @ 3")],
    "shared numbers": [(r"\foo{5}", r"\bar{5}"), (r"\foo{5}", "5"), ("5", r"\foo{5}"), (r"\foo(3, 5)", r"\foo(4, 5)"), ("x+5 mod 7", "y+5 mod 7")],
}  # fmt: skip


def cases(table: dict[str, list[tuple[str, str]]]) -> list[object]:
    """Each pair with its kind as its name."""
    return [
        pytest.param(gold, answer, id=f"{kind}-{gold}-{answer}") for kind, pairs in table.items() for gold, answer in pairs
    ]


@pytest.mark.parametrize(("gold", "answer"), cases(SAME))
def test_the_same_written_otherwise(gold: str, answer: str) -> None:
    """An answer that means the right one is right."""
    assert verdict(gold, answer, Policy()).value == 1.0


@pytest.mark.parametrize(("gold", "answer"), cases(OTHER))
def test_what_is_not_the_same(gold: str, answer: str) -> None:
    """An answer that means something else, more, less or nothing is not right."""
    assert verdict(gold, answer, Policy()).value in (0.0, None)


@pytest.mark.parametrize("gold", [gold for pairs in SAME.values() for gold, _ in pairs])
def test_the_right_answer_is_right(gold: str) -> None:
    """Every right answer verifies against itself."""
    assert verdict(gold, gold, Policy()).value == 1.0
