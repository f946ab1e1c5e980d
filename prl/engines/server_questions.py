"""What a server is asked before it is used: whether it can be what prl needs, and what it is, in one round.

Each answer that will not do is one line: the address, what is wrong, and how the server or the TOML is to be changed.
Nothing here changes what the server does for others, so ``prl run --check`` asks the same.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from prl.engines.base import Decoding
from prl.engines.server_link import GENERATE, ServerLink, ServerRefusedError
from prl.engines.server_stream import ServerStream, body_of
from prl.errors import EngineError
from prl.failure import together_as_it_was
from prl.log import get_logger

OLDEST, TRIED = (0, 32), (0, 32)
"""Versions of vLLM: the first that names weight versions and has these routes, and the last that prl was tried with."""
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_BACKENDS = {"GlooTransferEngine": "gloo", "NCCLWeightTransferEngine": "nccl"}
_ASKED_S = 60.0
"""Longest wait for one answer. The first token of a server that has just started can take long."""
_COLD = 0.01
"""A temperature at which a sampled token is all but certain."""
_PROBE = [0, 1]
_RANK = "X-data-parallel-rank"
"""The header that names who is asked."""
log = get_logger(__name__)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a server must be."""

    model: str
    """What the run trains, as it is loaded: a folder, or a hub name."""
    sizes: dict[str, int]
    """Of the model, by the names of its ``config.json``; empty where they are not known here."""
    transport: str
    max_model_len: int


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is."""

    version: str
    """Of vLLM."""
    model: str
    num_workers: int
    """Processes that take part in a weight transfer: those of every data-parallel rank."""
    num_ranks: int
    """Data-parallel ranks: each has a copy of the model and samples by itself."""
    is_paused: bool
    names_versions: bool
    """Whether every event of a stream says which weights sampled it: prl's plug-in is there."""


async def examine(link: ServerLink, wanted: Wanted) -> ServerFacts:
    """Ask everything. A server that is paused is not asked to sample.

    Raises:
        EngineError: it will not do; says why and what to change.
        TimeoutError: an answer did not come.
    """
    version = await _version(link)
    model = await _model(link, wanted)
    is_paused = (await _of_dev_mode(link, "GET", "/is_paused"))["is_paused"]
    await _backend(link, wanted)
    world, of_rank = [
        (await _of_dev_mode(link, "GET", f"/get_world_size?include_dp={include}"))["world_size"]
        for include in ("true", "false")
    ]
    num_ranks = world // of_rank
    names_versions = False if is_paused else await _samples(link)
    if not is_paused:
        await _every_rank(link, num_ranks)
    return ServerFacts(
        version=version,
        model=model,
        num_workers=world,
        num_ranks=num_ranks,
        is_paused=is_paused,
        names_versions=names_versions,
    )


async def scores(
    link: ServerLink, token_ids: list[int], *, salt: str, timeout_s: float, num_ranks: int
) -> list[list[float]]:
    """What each data-parallel rank says as ``score``."""
    if num_ranks == 1:
        return [await score(link, token_ids, salt=salt, timeout_s=timeout_s)]
    ask = partial(score, link, token_ids, salt=salt, timeout_s=timeout_s)
    ranks: dict[str, Any] = {str(rank): partial(ask, rank=rank) for rank in range(num_ranks)}
    told = await together_as_it_was("score", **ranks)
    return [told[rank] for rank in ranks]


async def score(
    link: ServerLink, token_ids: list[int], *, salt: str, timeout_s: float, rank: int | None = None
) -> list[float]:
    """Log-probability at temperature 1 of each token after the first (length L - 1). Raises as ``ServerLink.ask``.

    ``rank`` is who says it; None: whichever data-parallel rank the server takes.
    """
    sampling = {"max_tokens": 1, "prompt_logprobs": 0, "ignore_eos": True, "detokenize": False}
    body = {"token_ids": token_ids, "sampling_params": sampling, "cache_salt": salt}
    headers = None if rank is None else {_RANK: str(rank)}
    answer = await link.ask("POST", GENERATE, body, timeout_s=timeout_s, doing="scores", headers=headers)
    found = zip(token_ids[1:], answer["prompt_logprobs"][1:], strict=True)
    return [float(by_token[str(token)]["logprob"]) for token, by_token in found]


async def _version(link: ServerLink) -> str:
    try:
        answer = await link.ask("GET", "/version", timeout_s=_ASKED_S)
        text = str(answer["version"])
    except (ServerRefusedError, TypeError, KeyError) as error:
        raise EngineError(
            f"{link.who} is no vllm serve process: it does not say its version ({error}); name the address of one in"
            " engine.servers"
        ) from error
    found = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if found < OLDEST:
        raise EngineError(
            f"{link.who} runs vLLM {text}, and prl needs {_dotted(OLDEST)} or newer there: install that and start it"
            " again"
        )
    if found > TRIED:
        log.warning(
            "a server runs a vLLM that prl was not tried with", server=link.who, version=text, tried=_dotted(TRIED)
        )
    return text


async def _model(link: ServerLink, wanted: Wanted) -> str:
    try:
        answer = await link.ask("GET", "/v1/models", timeout_s=_ASKED_S)
    except ServerRefusedError as error:
        if error.status != _UNAUTHORIZED:
            raise
        if link.api_key_env is None:
            raise EngineError(
                f"{link.who} wants an API key: put it into an environment variable, and the variable's name into"
                " engine.api_key_env"
            ) from error
        raise EngineError(
            f"{link.who} refused the API key in {link.api_key_env} (engine.api_key_env): it is not the one that the"
            " server was started with (--api-key, VLLM_API_KEY)"
        ) from error
    served = answer["data"][0]
    root = str(served.get("root") or served["id"])
    if _are_names(root, wanted.model) and root.casefold() != wanted.model.casefold():
        raise EngineError(f"{link.who} serves {root}, and the run trains {wanted.model}: start it with that model")
    if (length := served.get("max_model_len")) is not None and length < wanted.max_model_len:
        raise EngineError(
            f"{link.who} has room for {length} tokens, and engine.max_model_len = {wanted.max_model_len}: start it with"
            f" --max-model-len {wanted.max_model_len}, or lower the setting"
        )
    return root


def _are_names(*models: str) -> bool:
    """Whether all are names on the hub: folders may differ from host to host and hold the same."""
    return all(model.count("/") == 1 and model[0] not in "./~" and not Path(model).is_dir() for model in models)


async def _of_dev_mode(link: ServerLink, method: str, path: str, body: Any = None) -> Any:
    try:
        return await link.ask(method, path, body, timeout_s=_ASKED_S)
    except ServerRefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        raise EngineError(
            f"{link.who} has no routes for reinforcement learning ({path}): start it with VLLM_SERVER_DEV_MODE=1 in its"
            " environment"
        ) from error


async def _backend(link: ServerLink, wanted: Wanted) -> None:
    """How it receives weights, and for gloo what model it has: it is asked to join a group that it cannot join."""
    start = f'--weight-transfer-config \'{{"backend": "{wanted.transport}"}}\''
    try:
        init_info = {"expects": wanted.sizes} if wanted.transport == "gloo" else {}
        await _of_dev_mode(link, "POST", "/init_weight_transfer_engine", {"init_info": init_info})
    except ServerRefusedError as error:
        if "not configured" in error.said:
            raise EngineError(f"{link.who} cannot receive weights: start it with {start}") from error
        found = next((backend for engine, backend in _BACKENDS.items() if engine in error.said), "another backend")
        if found != wanted.transport:
            raise EngineError(
                f"{link.who} receives weights over {found}, and the run sends them over {wanted.transport}"
                f" (weights.transport): start it with {start}, or change the setting"
            ) from error
        if wanted.transport == "gloo" and (other := re.search(r"the model here has (.*?);", error.said)):
            raise EngineError(
                f"{link.who} serves another model than the run trains: its model has {other[1]}. Start it with the"
                f" files of {wanted.model}"
            ) from error


async def _samples(link: ServerLink) -> bool:
    """Sample a token, and compare its log-probability with a score; whether its version is named while it streams.

    Cold, a sampled token is all but certain under the distribution it was sampled from, which is what must be reported;
    before the temperature it is as likely as its score says.
    """
    decoding = Decoding(temperature=_COLD, max_tokens=2, stop_token_ids=[])
    body = body_of(_PROBE, decoding, salt="prl", stream_interval=1)
    token_ids, logprobs = list[int](), list[float]()
    labels = list[str]()

    def version_of(label: str) -> int:
        labels.append(label)
        return 0

    stream = ServerStream(link, body, version=0, version_of=version_of)
    names_versions = False
    try:
        async for chunk in stream.chunks():
            names_versions = names_versions or (chunk.finish is None and bool(labels))
            token_ids += chunk.token_ids
            logprobs += chunk.logprobs
    except ServerRefusedError as error:
        if error.status != _FORBIDDEN:
            raise
        raise EngineError(
            f"{link.who} has no route that takes and gives tokens ({GENERATE}): start it with --tokens-only"
        ) from error
    scores = (await score(link, _PROBE + token_ids, salt="prl", timeout_s=_ASKED_S))[len(_PROBE) - 1 :]
    raw = all(abs(logprob - at_one) < 0.05 for logprob, at_one in zip(logprobs, scores, strict=True))  # noqa: PLR2004
    if raw and min(scores) < -0.2:  # noqa: PLR2004 -- the model itself is not certain
        raise EngineError(
            f"{link.who} gives log-probabilities from before the temperature: start it with --logprobs-mode"
            " processed_logprobs"
        )
    return names_versions


async def _every_rank(link: ServerLink, num_ranks: int) -> None:
    """Ask each for a score: all that take part in the weight transfers must be behind this address."""
    try:
        await scores(link, _PROBE, salt="prl", timeout_s=_ASKED_S, num_ranks=num_ranks)
    except ServerRefusedError as error:
        if "data_parallel_rank" not in error.said:
            raise
        raise EngineError(
            f"{link.who} is one of several addresses of {num_ranks} data-parallel ranks ({error.said}): start them"
            f" behind one, with --data-parallel-size {num_ranks} and without --data-parallel-external-lb,"
            " --data-parallel-hybrid-lb and --data-parallel-rank, or as servers of one rank each"
        ) from error


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
