r"""``answer``: the final answer equals ``answer`` of the prompt, exactly after this normalisation and nothing else.

1. Compatibility forms of Unicode are unified (NFKC), the minus sign is ``-``, case does not matter.
2. ``$``, ``\(``, ``\)``, ``\left``, ``\right``, ``\,``, ``\!``, ``\;``, white space and a final ``.`` go; ``\dfrac``
   and ``\tfrac`` are ``\frac``; ``\text{...}``, ``\mathrm{...}`` and ``\mbox{...}`` are their content.
3. A plain decimal number has no thousands separators (``1,000`` or ``1{,}000``), no plus sign, no leading zeros and no
   trailing zeros behind its point: ``+007.50`` is ``7.5``, ``-0`` is ``0``.

``1/2``, ``0.5`` and ``\frac{1}{2}`` stay three answers: the ``math`` reward is for that. The reward is 1.0 or 0.0.
"""

from __future__ import annotations

import re
import unicodedata

from prl.rewards.extract import Extract, final_answer
from prl.types import Completion, Prompt

_DROPPED = re.compile(r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\[()!,;]|\$|\s")
_FRACTION = re.compile(r"\\[dt]frac(?![a-zA-Z])")
_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"([-+]?)(\d*)(?:\.(\d*))?")


class Answer:
    """1.0 for the right answer, 0.0 for any other and for none."""

    required_fields = ("answer",)

    def __init__(self, *, extract: Extract = "auto") -> None:
        """``extract`` says where the answer is: see ``extract.py``."""
        self._extract: Extract = extract

    async def __call__(self, completion: Completion, prompt: Prompt) -> float:
        """Runs on the event loop: linear in at most ``extract.TAIL_CHARS`` characters."""
        answer = final_answer(completion, prompt, self._extract)
        return float(answer is not None and normalise(answer) == normalise(prompt.fields["answer"]))


def normalise(answer: str) -> str:
    """The one form of an answer that is compared, by the rules above."""
    text = unicodedata.normalize("NFKC", answer).replace("\u2212", "-").casefold()
    text = _FRACTION.sub(r"\\frac", _WRAPPER.sub(r"\1", text))
    text = _DROPPED.sub("", text)
    text = text.removesuffix(".")
    if _THOUSANDS.fullmatch(text):
        text = text.replace("{,}", "").replace(",", "")
    if (number := _DECIMAL.fullmatch(text)) and any(digit.isdigit() for digit in text):
        sign, whole, fraction = number.groups()
        digits = (whole.lstrip("0") or "0") + ("." + kept if (kept := (fraction or "").rstrip("0")) else "")
        text = digits if sign != "-" or digits == "0" else "-" + digits
    return text
