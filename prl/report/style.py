"""How a report looks: on a screen, light or dark, and on paper."""

from __future__ import annotations

_LIGHT = ("#0b5cad", "#b3400a", "#1b7a3d", "#8a2a8a", "#8a6a00", "#4d4d4d")
_DARK = ("#7ab8ff", "#ff9d66", "#7fd39a", "#e59ae5", "#e0c050", "#c8c8c8")


def _colours(colours: tuple[str, ...], *, text: str, back: str, quiet: str, rule: str) -> str:
    named = "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))
    return f":root{{{named}--text:{text};--back:{back};--quiet:{quiet};--rule:{rule}}}"


_CLASSES = "".join(
    f".c{index}{{stroke:var(--c{index})}}.c{index}.band,.c{index}.dot{{fill:var(--c{index})}}"
    for index in range(len(_LIGHT))
)
_ON_LIGHT = _colours(_LIGHT, text="#1a1a1a", back="#ffffff", quiet="#555555", rule="#d8d8d8")
_ON_DARK = _colours(_DARK, text="#ececec", back="#16181c", quiet="#b4b4b4", rule="#3a3d44")
STYLE = (
    _ON_LIGHT
    + f"@media screen and (prefers-color-scheme:dark){{{_ON_DARK}}}"
    + "body{margin:0;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:62rem;margin:0 auto;padding:1.5rem 1rem 4rem}"
    "h1{font-size:1.6rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2.5rem 0 .75rem}h3{font-size:1rem}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.25rem 1rem .25rem 0;"
    "border-bottom:1px solid var(--rule);overflow-wrap:anywhere;font-weight:normal;font-variant-numeric:tabular-nums}"
    "thead th{font-weight:600}.wide{overflow-x:auto}"
    ".curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.25rem}"
    "figure{margin:0;break-inside:avoid}figcaption{font-weight:600}.unit{color:var(--quiet);font-weight:normal;"
    "font-size:.875rem}svg{width:100%;height:auto;display:block}svg text{fill:var(--quiet);font-size:11px}"
    ".grid{stroke:var(--rule)}.axis{stroke:var(--quiet)}.line{fill:none;stroke-width:1.75}"
    ".band{stroke:none;opacity:.18}"
    + _CLASSES
    + "pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--rule);padding:.5rem .75rem;margin:0}"
    "article{margin:0 0 1.5rem;break-inside:avoid}"
    "@media print{body{font-size:11px}main{max-width:none;padding:0}}"
)
