"""The paper's case: 128 accelerators, batches of 128, lengths uniform (arXiv 2509.19128, appendix A)."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.settings import load_config
from prl.simulate import Report, costs_of, report_of, simulate

CONFIG = Path(__file__).parents[2] / "configs" / "simulate-paper.toml"
WITHIN_3_PERCENT = 0.03
pytestmark = pytest.mark.timeout(600)  # ten seconds of work, on a machine that may be busy


def simulated(*overrides: str) -> Report:
    """The shipped configuration with these changes."""
    config = load_config(CONFIG, overrides)
    costs = costs_of(config)
    return report_of(config, costs, simulate(config, costs))


def test_the_papers_case_comes_out() -> None:
    """r_pipe 16.9 with 44 generating, r_conv 10.7 in rounds of 133, so 1.57 times it, and a largest lag of 133."""
    pipeline = simulated("run.num_steps=145", "simulate.warmup_steps=105")
    conventional = simulated(
        "pipeline.mode=conventional",
        "engine.count=128",
        "trainer.num_ranks=128",
        "engine.max_num_seqs=256",
        "simulate.num_accelerators=128",
        "run.num_steps=133",
        "simulate.warmup_steps=0",
    )
    rates = pipeline.trained_tokens_per_s, conventional.trained_tokens_per_s
    assert rates == pytest.approx((16.9, 10.7), rel=WITHIN_3_PERCENT)
    assert rates[0] / rates[1] == pytest.approx(1.57, rel=WITHIN_3_PERCENT)
    assert pipeline.lag.max == pytest.approx(133, rel=WITHIN_3_PERCENT)


def test_a_larger_share_of_training_accelerators_raises_the_lag() -> None:
    """N = B = 16: with as many sequences as keep the trainer fed, 11 of them training lag more than 8 of them."""

    def fed(num_ranks: int, sequences: int) -> Report:
        report = simulated(
            "pipeline.groups_per_step=16",
            f"engine.count={16 - num_ranks}",
            f"engine.max_num_seqs={sequences}",
            f"trainer.num_ranks={num_ranks}",
            "run.num_steps=165",
            "simulate.warmup_steps=145",
        )
        assert report.trainer.training > 0.85
        return report

    few, many = fed(8, 100), fed(11, 240)
    assert many.trained_tokens_per_s > 1.25 * few.trained_tokens_per_s
    assert many.lag.max > 1.25 * few.lag.max
    assert many.lag.mean > 1.25 * few.lag.mean
