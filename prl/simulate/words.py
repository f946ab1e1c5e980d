"""A simulated run in a table for people. Pure."""

from __future__ import annotations

from prl.config import Config
from prl.simulate.report import Report

KIB = 1 << 10


def lines_of(config: Config, report: Report) -> list[str]:
    """What the run came to, a line for each matter."""
    lag, trainer, engines, queues = report.lag, report.trainer, report.engines, report.queues
    rows = [
        ("machine", _machine(config)),
        ("steps", f"{report.steps} after the warm-up, {report.step_s:,.4g} s each, {report.seconds:,.4g} s together"),
        (
            "throughput",
            (
                f"{report.samples_per_s:,.4g} samples/s, {report.trained_tokens_per_s:,.4g} tokens/s trained,"
                f" {report.generated_tokens_per_s:,.4g} generated"
            ),
        ),
        ("goodput", f"{report.sample_goodput:.1%} of the samples that came to an end were trained{_dropped(report)}"),
        ("lag", f"mean {lag.mean:.2f}, half below {lag.p50}, 90% {lag.p90}, 99% {lag.p99}, largest {lag.max}"),
        ("", _bars(lag.histogram)),
        ("ESS", f"{report.ess:.4f} where a token's log-ratio drifts by {config.simulate.drift:g} a step"),
        (
            "trainer",
            (
                f"{trainer.training:.1%} trains, {trainer.waits_for_batch:.1%} waits for a batch,"
                f" {trainer.updates:.1%} sends weights or is between two steps"
                + (f", {trainer.restarts:.1%} restarts" if trainer.restarts else "")
            ),
        ),
        (
            "engines",
            (
                f"{engines.decoding:.1%} decode, {engines.updates:.1%} stand still for weights,"
                f" {engines.no_sequences:.1%} have no sequences"
            ),
        ),
        (
            "queues",
            (
                f"{queues.sequences_in_flight:,.0f} sequences in flight, {queues.groups_finished:,} groups finished at"
                f" most ({queues.finished_bytes / KIB:,.0f} KiB), a batch {queues.batch_bytes / KIB:,.0f} KiB"
            ),
        ),
        ("KV cache", f"{queues.kv_tokens:,} tokens in one engine at most"),
    ]
    return [f"{name:11}{text}" for name, text in rows if text]


def _machine(config: Config) -> str:
    engine, shared = config.engine, config.simulate.num_accelerators
    size = f" of {engine.tensor_parallel_size}" if engine.tensor_parallel_size > 1 else ""
    on = f" on {shared} accelerators" if shared else ""
    engines = f"{engine.num_engines} engines{size}, {engine.max_num_seqs} sequences each"
    return f"{engines}; {config.trainer.num_ranks} ranks{on}"


def _dropped(report: Report) -> str:
    counts = [f"{count:,} {reason}" for reason, count in sorted(report.dropped.items())]
    for what, count in (("engine", report.engine_restarts), ("trainer", report.trainer_restarts)):
        if count:
            counts.append(f"{count} restarts of {'an' if what == 'engine' else 'the'} {what}")
    return f" ({', '.join(counts)})" if counts else ""


def _bars(histogram: dict[int, float]) -> str:
    """The lag's distribution in at most 32 bars, from 0 to the largest."""
    largest = max(histogram)
    num_bars = min(32, largest + 1)
    sums = [0.0] * num_bars
    for lag, share in histogram.items():
        sums[max(0, lag) * num_bars // (largest + 1)] += share
    top = max(sums)
    return f"0 {''.join('▁▂▃▄▅▆▇█'[min(7, int(8 * value / top))] for value in sums)} {largest}"
