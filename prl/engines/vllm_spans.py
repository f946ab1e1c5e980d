"""A stream of ``vllm serve`` that says of every token, as it comes, which weights sampled it.

vLLM knows it from the step that sampled the token, and its stream has a field for it that it fills at the end only. The
plug-in fills it in every event, where this vLLM is made as the one that prl was written for; elsewhere it does nothing,
and the controller does with what the last event says (``server_stream.py``).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

_OUTPUT, _SPANS = "_new_completion_output", "_weight_version_spans"


def name_versions_early() -> None:
    """Have every output carry the spans of its stream so far. Call it once in a process."""
    from vllm.v1.engine.output_processor import RequestState  # noqa: PLC0415 -- where vLLM has begun to load

    make_output = getattr(RequestState, _OUTPUT, None)
    if make_output is None or not hasattr(RequestState, _SPANS):
        return

    @wraps(make_output)
    def with_versions(state: Any, *args: Any, **kwargs: Any) -> Any:
        output = make_output(state, *args, **kwargs)
        if output.weight_versions is None:
            output.weight_versions = state._weight_version_spans()  # noqa: SLF001 -- there is no public way
        return output

    setattr(RequestState, _OUTPUT, with_versions)
