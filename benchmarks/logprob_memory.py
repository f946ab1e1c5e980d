"""Memory of the log-probability path at a large vocabulary: the trainer's, beside one that holds all logits.

    python benchmarks/logprob_memory.py [--quick] --out FILE.json

One micro-batch of 4,096 tokens, a vocabulary of 150,000, a Llama of one layer and hidden 512 with tied embeddings, one
rank, float32. ``pieces`` is what the trainer runs: ``Policy`` (with FSDP) and ``Loss``, forward and backward, the
entropy included. ``whole`` is the least that does without pieces: transformers' model and its logits, ``log_softmax``,
``gather``, the same loss, no FSDP, no entropy. Each in a fresh process, after a backward pass over a short micro-batch,
so that weights and gradients are there already and are not counted; the peak is the kernel's high-water mark of
resident memory above that.

Headline: peak of ``pieces`` over peak of ``whole``, medians. Target: at most a quarter, and less than the logits of the
micro-batch alone would take, which is what "never holds the logits of a whole micro-batch" comes to. ``--quick``:
hidden 256. Linux only, for the high-water mark that can be reset.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import harness

VOCABULARY, NUM_TOKENS, LENGTH = 150_000, 4096, 512
NUM_REPEATS = 3
TARGET_RATIO = 0.25
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(line: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (the most since the last reset) of this process, in bytes."""
    return next(int(text.split()[1]) * 1024 for text in STATUS.read_text().splitlines() if text.startswith(line))


def samples(num_tokens: int) -> list[Any]:
    """Sequences of ``LENGTH`` in which every token but the first is trained."""
    from prl.types import Sample  # noqa: PLC0415 -- after the parent has started, which stays small

    return [
        Sample(
            token_ids=[(start + 7 * t) % VOCABULARY for t in range(LENGTH)],
            loss_mask=[0] + [1] * (LENGTH - 1),
            logprobs=[-11.0] * LENGTH,
            versions=[0] * LENGTH,
            advantages=[0.0] + [0.5] * (LENGTH - 1),
        )
        for start in range(0, num_tokens, LENGTH)
    ]


def one(kind: str, folder: str, answer: Any) -> None:
    """A fresh process: load, warm up, reset the high-water mark, one forward and backward pass."""
    warnings.simplefilter("ignore")
    import torch  # noqa: PLC0415 -- only in the children: theirs is the memory that is measured
    import torch.distributed as dist  # noqa: PLC0415 -- the same
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 -- the same

    from prl.config import Config  # noqa: PLC0415 -- the same
    from prl.trainer.loss import Loss  # noqa: PLC0415 -- the same
    from prl.trainer.microbatch import pack  # noqa: PLC0415 -- the same
    from prl.trainer.model import load_policy  # noqa: PLC0415 -- the same

    torch.set_num_threads(1)
    device = torch.device("cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    loss, pieces = Loss(Config(model=folder)), kind == "pieces"
    model: Any = (
        load_policy(folder, device, torch.float32)
        if pieces
        else AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    )

    def run(some: list[Any]) -> None:
        batch = pack(some, device)
        if pieces:
            logprobs_N, entropy_N = model(batch, 1.0)
        else:
            rows = {"input_ids": batch.token_ids_RL, "position_ids": batch.positions_RL, "use_cache": False}
            logprobs_RLV = torch.log_softmax(model(**rows).logits, -1)
            logprobs_N = logprobs_RLV.gather(-1, batch.targets_UK.view(*batch.token_ids_RL.shape, 1)).flatten()
            del logprobs_RLV
            entropy_N = torch.zeros_like(logprobs_N)
        loss(logprobs_N, entropy_N, batch, num_sequences=len(some))[0].backward()

    everything = samples(NUM_TOKENS)
    run(samples(LENGTH)[:1])
    RESET.write_text("5")
    before, started = resident("VmRSS"), time.perf_counter()
    run(everything)
    answer.put({"peak_bytes": resident("VmHWM") - before, "seconds": time.perf_counter() - started, "base": before})
    dist.destroy_process_group()


def make_model(folder: str, hidden: int) -> None:
    """A fresh process, too: it leaves nothing behind that the measured ones would inherit."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 -- see above

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=1,
        num_attention_heads=8,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def in_a_process(work: Any, *arguments: Any) -> None:
    """Run to its end; a failure ends the benchmark."""
    child = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"{work.__name__}{arguments[:1]} ended with {child.exitcode}")


def measure(quick: bool) -> dict[str, Any]:
    """Both kinds, in turns."""
    hidden = 256 if quick else 512
    logits_bytes = NUM_TOKENS * VOCABULARY * 4
    answers: dict[str, list[dict[str, float]]] = {"pieces": [], "whole": []}
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(make_model, folder, hidden)
        for _ in range(NUM_REPEATS):
            for kind, found in answers.items():
                queue = multiprocessing.get_context("spawn").SimpleQueue()
                in_a_process(one, kind, folder, queue)
                found.append(queue.get())
    rows = [
        {
            "kind": kind,
            "peak_gib": harness.spread([each["peak_bytes"] / 2**30 for each in found]),
            "peak_over_logits": harness.spread([each["peak_bytes"] / logits_bytes for each in found]),
            "seconds": harness.spread([each["seconds"] for each in found]),
        }
        for kind, found in answers.items()
    ]
    pieces, whole = (row["peak_gib"]["median"] for row in rows)
    by_repeat = harness.ratios(*([each["peak_bytes"] for each in found] for found in answers.values()))
    return {
        "headline": round(pieces / whole, 4),
        "headline_by_repeat": by_repeat,
        "target": f"peak at most {TARGET_RATIO} of that with whole logits, and below the logits alone",
        "target_met": pieces <= TARGET_RATIO * whole and pieces * 2**30 < logits_bytes,
        "num_tokens": NUM_TOKENS,
        "hidden": hidden,
        "vocabulary": VOCABULARY,
        "logits_gib": round(logits_bytes / 2**30, 3),
        "peaks": rows,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["peaks"])
