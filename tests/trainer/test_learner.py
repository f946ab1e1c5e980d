from __future__ import annotations

import errno
import math
import os
import random
import socket
import subprocess
import sys
from array import array
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.cases import flat, make_batch, make_config, masked, random_samples, sample

torch: Any = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402 -- after the check for torch

from prl.errors import CheckpointError, TrainerError, WeightSyncError  # noqa: E402
from prl.trainer import checkpoint, drift  # noqa: E402
from prl.trainer.base import LOG_RATIO_EDGES  # noqa: E402
from prl.trainer.learner import Learner  # noqa: E402
from prl.trainer.loss import Loss, LossTerms  # noqa: E402
from prl.trainer.microbatch import pack, scored  # noqa: E402
from prl.trainer.questioned import rescored, twin_of  # noqa: E402
from prl.trainer.remote import in_order  # noqa: E402
from prl.types import Sample, WeightUpdate  # noqa: E402
from tests.trainer import rank_session  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")
SAMPLES = random_samples(1, 9)


@pytest.fixture(scope="module")
def learner(models: dict[str, Path], one_rank: None) -> Learner:
    """A learner whose weights no test changes."""
    return Learner(make_config(models["tied"]), str(models["tied"]), None, CPU)


@pytest.fixture(scope="module")
def one(models: dict[str, Path], one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the session as one rank."""
    folder = tmp_path_factory.mktemp("one")
    rank_session.session(models["tied"], folder)
    return folder


@pytest.fixture(scope="module")
def two(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the session as two ranks."""
    folder = tmp_path_factory.mktemp("two")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.trainer.rank_session", str(models["tied"]), str(folder)]
    ranks = [
        subprocess.Popen(command, env={**base, "RANK": str(rank), "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors.decode()[-2000:]
        yield folder
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


TIMES: dict[str, Any] = {"train_s": 0, "phases": []}
"""What of a report no two ranks and no two runs have in common."""


def _flat(report: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a report but the time, one by one."""
    bins = {f"bin {index}": count for index, count in enumerate(report["ratio_histogram"])}
    numbers = {name: value for name, value in report.items() if isinstance(value, int | float)}
    return {**numbers, **bins, "train_s": 0}


def _logprobs(folder: Path, rank: int) -> list[bytes]:
    return [b64decode(data) for data in _numbers(folder, rank)["logprobs"]]


def _numbers(folder: Path, rank: int = 0) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode((folder / f"rank-{rank}.json").read_bytes())
    return decoded


def _tensors(folder: Path, prefix: str) -> dict[str, Any]:
    every = load_file(folder / "tensors.safetensors")
    return {name.removeprefix(f"{prefix}/"): value for name, value in every.items() if name.startswith(f"{prefix}/")}


def _gradient(learner: Learner, microbatches: list[list[Sample]], num_sequences: int) -> dict[str, Any]:
    learner.accumulate(microbatches, num_sequences)
    return rank_session.whole(rank_session.gradients(learner), "g")


def _assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-6) -> None:
    """The difference's norm, over all tensors together, is at most ``tolerance`` of the expected norm."""
    assert found.keys() == expected.keys()
    difference = sum((found[name] - value).double().square().sum().item() for name, value in expected.items())
    assert math.sqrt(difference / sum(value.double().square().sum().item() for value in expected.values())) <= tolerance


# One rank -------------------------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_a_plain_padded_loop(learner: Learner, models: dict[str, Path]) -> None:
    """Packed, chunked and sharded, the gradient is that of the loss written out over single sequences."""
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).eval()
    loss = torch.zeros(())
    for each in SAMPLES:
        logits = lm(input_ids=torch.tensor([each.token_ids]), use_cache=False).logits[0] / 0.8
        for t, mask in enumerate(each.loss_mask):
            if mask:
                logprob = torch.log_softmax(logits[t - 1], -1)[each.token_ids[t]]
                weight = min(5.0, math.exp(logprob.item() - each.logprobs[t]))
                loss = loss - weight * each.advantages[t] * logprob / len(SAMPLES)
    loss.backward()
    expected = {f"g/{name}": parameter.grad for name, parameter in lm.named_parameters()}
    _assert_close(_gradient(learner, [SAMPLES], len(SAMPLES)), expected, 1e-5)


@pytest.mark.parametrize(
    "microbatches",
    [
        pytest.param([[each] for each in SAMPLES], id="one by one"),
        pytest.param([SAMPLES[:1], SAMPLES[1:]], id="uneven"),
        pytest.param([SAMPLES[::-1]], id="another order"),
        pytest.param([SAMPLES[:2], [], SAMPLES[2:], []], id="with empty ones"),
        pytest.param([SAMPLES[:3], [*SAMPLES[3:], *map(masked, random_samples(9, 3))]], id="with masked samples"),
        pytest.param([SAMPLES, list(map(masked, random_samples(9, 2)))], id="with a masked micro-batch"),
    ],
)
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(
    learner: Learner, microbatches: list[list[Sample]]
) -> None:
    """Any split, order and filling of the same samples gives the same gradient to 1e-6."""
    expected = _gradient(learner, [SAMPLES], len(SAMPLES))
    _assert_close(_gradient(learner, microbatches, len(SAMPLES)), expected)


@pytest.fixture(scope="module")
def penalised(models: dict[str, Path], one_rank: None) -> Learner:
    """A learner with a reference, one step away from it."""
    return rank_session.penalised(models["tied"])


@pytest.mark.parametrize("variant", rank_session.VARIANTS)
def test_no_loss_depends_on_how_the_batch_is_cut(
    penalised: Learner, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field notes D: every loss and penalty is the same one by one, reordered, in one row, and with masked samples."""
    rank_session.take_loss(penalised, variant)
    expected = _gradient(penalised, [SAMPLES], len(SAMPLES))
    assert max(each.abs().max() for each in expected.values()) > 0
    extra = list(map(masked, random_samples(9, 3)))
    for microbatches in ([[each] for each in SAMPLES], [SAMPLES[5:][::-1], [*extra, *SAMPLES[:5]], [], extra]):
        _assert_close(_gradient(penalised, microbatches, len(SAMPLES)), expected, 2e-6)
    monkeypatch.setattr(penalised.policy, "single_row", True)
    _assert_close(_gradient(penalised, [[*extra, *SAMPLES]], len(SAMPLES)), expected, 2e-6)


def test_a_penalised_gradient_is_that_of_a_plain_loop(penalised: Learner, models: dict[str, Path]) -> None:
    """PPO with k3 to the first model in the loss, written out over single sequences."""
    from transformers import AutoModelForCausalLM

    first, lm = (AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).eval() for _ in range(2))
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            parameter.copy_(penalised.parameters[name].full_tensor())
    loss = torch.zeros(())
    for each in SAMPLES:
        ids = torch.tensor([each.token_ids])
        logits = lm(input_ids=ids, use_cache=False).logits[0] / 0.8
        with torch.no_grad():
            ref_logits = first(input_ids=ids, use_cache=False).logits[0] / 0.8
        for t, mask in enumerate(each.loss_mask):
            if mask:
                logprob = torch.log_softmax(logits[t - 1], -1)[each.token_ids[t]]
                ratio = torch.exp(logprob - each.logprobs[t])
                gap = torch.log_softmax(ref_logits[t - 1], -1)[each.token_ids[t]] - logprob
                held = torch.clamp(ratio, 1 - 0.6, 1 + 0.9) * each.advantages[t]
                penalty = 0.5 * (torch.exp(gap) - 1 - gap)
                loss = loss + (penalty - torch.minimum(ratio * each.advantages[t], held)) / len(SAMPLES)
    loss.backward()
    rank_session.take_loss(penalised, "ppo")
    expected = {f"g/{name}": parameter.grad for name, parameter in lm.named_parameters()}
    _assert_close(_gradient(penalised, [SAMPLES[:3], SAMPLES[3:]], len(SAMPLES)), expected, 1e-5)


def test_the_reference_is_the_model_that_the_run_started_from(models: dict[str, Path], tmp_path: Path) -> None:
    """At the start the policy is its reference, a step later it is not, and a resumed run keeps the first one."""
    learner = Learner(make_config(models["tied"], kl={"coefficient": 0.1}), str(models["tied"]), None, CPU)
    first, second = (rank_session.train(learner, make_batch(step, 1)).kl_reference for step in range(2))
    assert first == pytest.approx(0.0, abs=1e-9)
    assert second > 1e-6
    learner.save(tmp_path / "step-000002", {})
    resumed = Learner(learner._config, str(models["tied"]), tmp_path / "step-000002", CPU)
    following = [rank_session.train(each, make_batch(2, 1)) for each in (learner, resumed)]
    assert following[0].kl_reference == following[1].kl_reference > second / 2


def test_a_reference_is_kept_only_for_a_penalty(learner: Learner) -> None:
    """Without a coefficient there is no second copy, and nothing is reported."""
    assert learner._reference is None
    assert learner.train(learner.step, [[]], 0).kl_reference is None
    learner.step -= 1


def test_an_entropy_bonus_raises_the_entropy(models: dict[str, Path]) -> None:
    """With advantages of 0 the bonus is all there is: its gradient is that of the mean entropy, written out."""
    from transformers import AutoModelForCausalLM

    config = make_config(models["tied"], loss={"entropy_bonus": 0.5, "aggregation": "sequence_mean"})
    learner = Learner(config, str(models["tied"]), None, CPU)
    samples = [msgspec.structs.replace(each, advantages=[0.0] * len(each.advantages)) for each in SAMPLES]
    lm = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).eval()
    loss = torch.zeros(())
    for each in samples:
        logits = lm(input_ids=torch.tensor([each.token_ids]), use_cache=False).logits[0] / 0.8
        log_p = torch.log_softmax(logits, -1)
        trained = [t for t, mask in enumerate(each.loss_mask) if mask]
        for t in trained:
            loss = loss + 0.5 * (log_p[t - 1].exp() * log_p[t - 1]).sum() / len(trained) / len(samples)
    loss.backward()
    expected = {f"g/{name}": parameter.grad for name, parameter in lm.named_parameters()}
    _assert_close(_gradient(learner, [samples[:4], samples[4:]], len(samples)), expected, 1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_on_policy_the_ratio_is_one(models: dict[str, Path], temperature: float) -> None:
    """With the policy's own log-probabilities as behaviour, ESS is 1, KL 0 and nothing is clipped."""
    config = make_config(models["tied"], sampling={"temperature": temperature})
    learner = Learner(config, str(models["tied"]), None, CPU)
    token_ids = [5, 9, 3, 22, 41, 8]
    logprobs = learner.policy.score(pack([scored(token_ids)], CPU), temperature).tolist()
    own = msgspec.structs.replace(sample(token_ids, 1, 0.5), logprobs=[0.0, *logprobs])
    report = learner.train(0, [[own]], 1)
    assert report.ess == pytest.approx(1.0, abs=1e-6)
    assert report.kl_behaviour == pytest.approx(0.0, abs=1e-6)
    assert report.clip_frac == 0.0
    assert report.tokens_trained == 5


def test_the_step_is_that_of_plain_adamw(models: dict[str, Path]) -> None:
    """Two steps with clipping, warm-up and decay move the weights as torch's AdamW moves those of a plain model."""
    from transformers import AutoModelForCausalLM

    learner = Learner(make_config(models["untied"]), str(models["untied"]), None, CPU)
    lm = AutoModelForCausalLM.from_pretrained(models["untied"], dtype=torch.float32).eval()
    named = dict(lm.named_parameters())
    groups = [
        {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.999))
    for step, lr in enumerate([0.5e-3, 1e-3]):
        batch = make_batch(step, 1)
        gradient = _gradient(learner, rank_session.share(batch), batch.num_sequences)
        for name, parameter in named.items():
            parameter.grad = gradient[f"g/{name}"]
        norm = torch.nn.utils.clip_grad_norm_(named.values(), 1.0).item()
        for group in plain.param_groups:
            group["lr"] = lr
        plain.step()
        report = rank_session.train(learner, batch)
        assert report.grad_norm == pytest.approx(norm, rel=1e-5)
        assert report.grad_norm > 1.0, "clipping must be at work"
        assert report.lr == pytest.approx(lr)
    moved = rank_session.whole(learner.policy.tensors, "p")
    _assert_close(moved, {f"p/{name}": parameter.detach() for name, parameter in named.items()}, 1e-6)


@pytest.mark.parametrize("microbatches", [[], [[]], [[masked(each) for each in SAMPLES]]])
def test_a_batch_without_trained_tokens_changes_nothing(
    models: dict[str, Path], microbatches: list[list[Sample]]
) -> None:
    """Empty or fully masked: defined numbers, weights and moments untouched, and the step still counts."""
    learner = Learner(make_config(models["tied"]), str(models["tied"]), None, CPU)
    rank_session.train(learner, make_batch(0, 1))
    before = rank_session.whole(learner._checkpointed(), "")
    report = learner.train(1, microbatches, 0)
    after = rank_session.whole(learner._checkpointed(), "")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (report.loss, report.grad_norm, report.ess, report.tokens_trained) == (0.0, 0.0, 1.0, 0)
    assert (report.kl_behaviour, report.clip_frac, report.entropy, report.skipped) == (0.0, 0.0, 0.0, False)
    assert learner.step == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_advantage_skips_the_step(models: dict[str, Path], bad: float) -> None:
    """NaN or infinity in the data leaves weights and moments, is reported, and advances step and schedule."""
    learner = Learner(make_config(models["tied"]), str(models["tied"]), None, CPU)
    before = rank_session.whole(learner._checkpointed(), "")
    skipped = learner.train(0, [[*SAMPLES, sample([4, 5, 6], 1, bad)]], 10)
    after = rank_session.whole(learner._checkpointed(), "")
    assert skipped.skipped
    assert all(torch.equal(before[name], after[name]) for name in before)
    following = rank_session.train(learner, make_batch(1, 1))
    assert not following.skipped
    assert following.lr == pytest.approx(1e-3)


@pytest.mark.parametrize("variant", rank_session.VARIANTS)
def test_an_impossible_log_probability_skips_the_step_under_every_loss(models: dict[str, Path], variant: str) -> None:
    """-inf of a sampled token: some losses bound the ratio to a finite number, and still the step is skipped."""
    learner = Learner(make_config(models["tied"]), str(models["tied"]), None, CPU)
    rank_session.take_loss(learner, variant)
    broken = sample([4, 5, 6], 1, 1.0)
    broken.logprobs[-1] = -math.inf
    before = rank_session.whole(learner._checkpointed(), "")
    assert learner.train(0, [[*SAMPLES, broken]], 10).skipped
    after = rank_session.whole(learner._checkpointed(), "")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("variant", ["reinforce", "ppo", "gspo", "masked_importance"])
def test_zero_variance_on_everything_is_a_step_without_a_gradient(learner: Learner, variant: str) -> None:
    """Advantages of 0 everywhere, one sample or many: loss and gradient are exactly 0."""
    silent = list(map(flat, SAMPLES))
    before = learner._loss
    learner._loss = Loss(make_config(Path("m"), loss={"name": variant}))
    for samples in (silent, silent[:1]):
        sums = learner.accumulate([samples], len(samples))
        assert sums[0].item() == 0.0
        assert all(not each.any() for each in rank_session.whole(rank_session.gradients(learner), "g").values())
    learner._loss = before


def test_what_teaches_nothing_is_looked_at_without_a_backward_pass(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches behind the teaching ones give the same sums, no gradient, and no backward pass."""
    silent = list(map(flat, random_samples(9, 4)))
    batch = [SAMPLES, silent[:1], silent[1:]]
    sums = learner.accumulate(batch, 13)
    expected = rank_session.whole(rank_session.gradients(learner), "g")
    num_passes, backward = 0, torch.Tensor.backward

    def counted(tensor: Any) -> None:
        nonlocal num_passes
        num_passes += 1
        backward(tensor)

    monkeypatch.setattr(torch.Tensor, "backward", counted)
    assert torch.allclose(learner.accumulate(batch, 13, 1), sums, rtol=1e-6)
    _assert_close(rank_session.whole(rank_session.gradients(learner), "g"), expected)
    assert num_passes == 1


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_log_probability_belongs_to_its_token(learner: Learner, seed: int, num_microbatches: int) -> None:
    """Packed, cut into micro-batches, with turns between masked tokens, with a gradient or without, or all masked."""
    draw = random.Random(seed)
    samples = [_with_turns(each, draw) for each in random_samples(seed, draw.randint(1, 7))]
    microbatches: list[list[Sample]] = [[] for _ in range(num_microbatches)]
    for each in samples:
        draw.choice(microbatches).append(each)
    seen: list[Any] = []
    learner.accumulate(microbatches, 1, draw.randint(1, num_microbatches), seen.append)
    rank_session.gradients(learner)
    ordered = [each for microbatch in microbatches for each in microbatch]
    expected = learner.rescore([each.token_ids for each in ordered], 0.8, None)
    for each, data, scores in zip(ordered, drift.by_sample(seen, microbatches), expected, strict=True):
        trained = [scores[t - 1] for t, mask in enumerate(each.loss_mask) if mask]
        assert array("f", data).tolist() == pytest.approx(trained, abs=1e-5)


def _with_turns(each: Sample, draw: random.Random) -> Sample:
    """The sample with some of its sampled tokens, or all, as if they stood between turns."""
    share = draw.choice([0.0, 0.3, 1.0])
    mask = [on if draw.random() >= share else 0 for on in each.loss_mask]
    advantages = [value * on for value, on in zip(each.advantages, mask, strict=True)]
    return msgspec.structs.replace(each, loss_mask=mask, advantages=advantages)


def test_how_far_the_policy_drifted_by_hand(learner: Learner) -> None:
    """The gap is the mean distance, that of lag 0 of the current version's tokens alone; each token is in one bin."""
    each = max(SAMPLES, key=lambda one: sum(one.loss_mask))
    pi = learner.rescore([each.token_ids], 0.8, None)[0]
    trained = [t for t, mask in enumerate(each.loss_mask) if mask]
    shifts = [0.0, 0.3, -0.3, 3.0, *[0.015] * 20][: len(trained)]
    logprobs, versions = list(each.logprobs), list(each.versions)
    for t, shift in zip(trained, shifts, strict=True):
        logprobs[t], versions[t] = pi[t - 1] - shift, 0 if shift in {0.0, 0.3} else -1
    moved = msgspec.structs.replace(each, logprobs=logprobs, versions=versions)
    sums = learner.accumulate([[moved], []], 1)[len(LossTerms._fields) :].tolist()
    rank_session.gradients(learner)
    said = drift.fields_of(sums, len(trained))
    assert said["gap_mean"] == pytest.approx(sum(map(abs, shifts)) / len(shifts), abs=1e-5)
    assert (said["tokens_fresh"], said["gap_fresh"]) == (2, pytest.approx(0.15, abs=1e-5))
    expected = [bisect_right(LOG_RATIO_EDGES, shift) for shift in shifts]
    assert said["ratio_histogram"] == [expected.count(index) for index in range(len(LOG_RATIO_EDGES) + 1)]


def test_versions_and_steps_cannot_drift(learner: Learner) -> None:
    """A batch for another step and an update of another version are refused."""
    with pytest.raises(TrainerError, match="for step 4, but the trainer has completed 0"):
        learner.train(4, [[]], 0)
    manifest = learner.ready().manifest
    with pytest.raises(TrainerError, match="version 1 was asked for, but the weights are version 0"):
        learner.publish(WeightUpdate(version=1, transport="gloo", manifest=manifest))
    with pytest.raises(WeightSyncError, match="manifest"):
        learner.publish(WeightUpdate(version=0, transport="gloo", manifest=manifest[1:]))


def test_scores_are_at_temperature_one(learner: Learner, models: dict[str, Path]) -> None:
    """Whatever the sampling temperature, a score is log_softmax of the logits; one token has none."""
    from transformers import AutoModelForCausalLM

    token_ids = [7, 8, 9, 10]
    lm = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).eval()
    with torch.no_grad():
        expected = torch.log_softmax(lm(torch.tensor([token_ids])).logits[0], -1)
    scores = learner.score(token_ids)
    assert scores == pytest.approx([expected[t, token_ids[t + 1]].item() for t in range(3)], abs=1e-5)
    assert learner.score([7]) == []


def test_sequences_are_rescored_at_any_temperature_and_in_any_type(learner: Learner, models: dict[str, Path]) -> None:
    """As the model alone scores them; in bfloat16 the numbers are other ones, and the learner's own stay."""
    from transformers import AutoModelForCausalLM

    sequences = [[7, 8, 9, 10], [3], [11, 12]]
    lm = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).eval()
    expected = []
    for ids in sequences:
        with torch.no_grad():
            logprobs = torch.log_softmax(lm(torch.tensor([ids])).logits[0] / 0.5, -1)
        expected.append([logprobs[t, token].item() for t, token in enumerate(ids[1:])])
    for found in (learner.rescore(sequences, 0.5, None), learner.rescore(sequences, 0.5, "float32")):
        assert [pytest.approx(each, abs=1e-5) for each in expected] == found
    rounded = learner.rescore(sequences, 0.5, "bfloat16")
    assert [pytest.approx(each, abs=0.3) for each in expected] == rounded
    assert rounded != learner.rescore(sequences, 0.5, None)


def test_a_copy_in_another_type_has_the_current_weights(models: dict[str, Path]) -> None:
    """Not those of the checkpoint."""
    learner = rank_session.penalised(models["tied"])
    learner.nudge(["model.embed_tokens.weight"], 0.3)
    current = learner.rescore([[7, 8, 9, 10]], 1.0, None)
    twin = twin_of(learner.policy, str(models["tied"]), CPU, torch.float32, learner._config)
    assert rescored(twin, [[7, 8, 9, 10]], 1.0, CPU)[0] == pytest.approx(current[0], abs=1e-6)


def test_adapters_are_copied_and_nudged(models: dict[str, Path]) -> None:
    """Under LoRA a weight is nudged through its adapter, which begins with zeros; its base stays."""
    pytest.importorskip("peft")
    adapter = {"rank": 2, "target_modules": ["q_proj"]}
    learner = Learner(make_config(models["tied"], lora=adapter), str(models["tied"]), None, CPU)
    ids = [[7, 8, 9, 10]]
    before, base = learner.rescore(ids, 1.0, None), rank_session.whole(learner.policy.tensors, "p")
    learner.nudge(["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"], 0.3)
    after = learner.rescore(ids, 1.0, None)
    assert after != before
    assert all(
        torch.equal(value, base[name]) for name, value in rank_session.whole(learner.policy.tensors, "p").items()
    )
    twin = twin_of(learner.policy, str(models["tied"]), CPU, torch.float32, learner._config)
    assert rescored(twin, ids, 1.0, CPU)[0] == pytest.approx(after[0], abs=1e-6)


def test_a_nudge_changes_the_named_tensors_only(models: dict[str, Path]) -> None:
    """By about the share of their size that was asked for; what is no parameter is passed over; a version is made."""
    learner = Learner(make_config(models["untied"]), str(models["untied"]), None, CPU)
    before, name = rank_session.whole(learner.parameters, "p"), "lm_head.weight"
    learner.nudge([name, "no.such.buffer"], 0.1)
    after = rank_session.whole(learner.parameters, "p")
    assert [key for key, value in after.items() if not torch.equal(value, before[key])] == [f"p/{name}"]
    old, new = before[f"p/{name}"], after[f"p/{name}"]
    assert ((new - old).norm() / old.norm()).item() == pytest.approx(0.1, rel=0.1)
    assert learner.step == 1


# One rank and two -----------------------------------------------------------------------------------------------------


def test_two_ranks_have_the_gradient_of_one(one: Path, two: Path) -> None:
    """Summed over two ranks, the gradient is that of one, also when one rank has nothing to do."""
    for kind in ("gradient", "idle"):
        expected = _tensors(one, kind)
        assert max(each.abs().max() for each in expected.values()) > 0
        _assert_close(_tensors(two, kind), expected)


def test_looking_without_a_backward_pass_leaves_two_ranks_in_step(one: Path, two: Path) -> None:
    """Micro-batches that teach nothing change no gradient, on one rank or two."""
    for folder in (one, two):
        _assert_close(_tensors(folder, "silent"), _tensors(one, "gradient"))


def test_two_ranks_have_the_gradient_of_one_under_every_loss(one: Path, two: Path) -> None:
    """With a reference, an entropy bonus and every aggregation, over one rank and two."""
    for variant in rank_session.VARIANTS:
        _assert_close(_tensors(two, variant), _tensors(one, variant), 2e-6)
    first, second = (_numbers(folder)["penalised"] for folder in (one, two))
    assert _flat(second) == pytest.approx(_flat(first), rel=1e-4, abs=1e-6)
    assert first["kl_reference"] != 0


def test_two_ranks_learn_what_one_learns(one: Path, two: Path) -> None:
    """After six steps the weights agree, and so does every reported number but the time."""
    _assert_close(_tensors(two, "straight"), _tensors(one, "straight"), 1e-5)
    for a, b in zip(_numbers(one)["reports"], _numbers(two)["reports"], strict=True):
        assert {**_flat(b), "kl_reference": 0} == pytest.approx({**_flat(a), "kl_reference": 0}, rel=1e-4, abs=1e-6)


def test_two_ranks_say_of_each_token_what_one_says(one: Path, two: Path) -> None:
    """Whichever rank had a sample, its trained tokens have the log-probabilities that they have on one rank."""
    alone = in_order(make_batch(2, 1), [_logprobs(one, 0)])
    together = in_order(make_batch(2, 2), [_logprobs(two, rank) for rank in range(2)])
    for expected, found, of_batch in zip(alone, together, make_batch(2, 1).samples, strict=True):
        assert array("f", found).tolist() == pytest.approx(array("f", expected).tolist(), abs=1e-4)
        assert len(found) == 4 * sum(of_batch.loss_mask)


def test_thirty_steps_on_two_ranks_make_the_weights_of_one(one: Path, two: Path, models: dict[str, Path]) -> None:
    """On the same batches the weights differ by float32 rounding only, after a way that is far longer than that."""
    from transformers import AutoModelForCausalLM

    alone, together = _tensors(one, "thirty"), _tensors(two, "thirty")
    _assert_close(together, alone, 1e-4)
    lm = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32)
    first = {name: parameter.detach() for name, parameter in lm.named_parameters()}
    with pytest.raises(AssertionError):
        _assert_close(alone, first, 1e-2)
    assert _numbers(two)["thirty"] == pytest.approx(_numbers(one)["thirty"], rel=1e-2)


def test_replicas_learn_what_plain_sharding_learns(two: Path) -> None:
    """Hybrid sharding gives the gradient, its norm and the weights of plain sharding, and its checkpoint fits both."""
    _assert_close(_tensors(two, "hybrid_gradient"), _tensors(two, "gradient"))
    _assert_close(_tensors(two, "hybrid"), _tensors(two, "straight"), 1e-5)
    _assert_close(_tensors(two, "hybrid_taken_up"), _tensors(two, "hybrid"), 1e-5)
    norms = [[report["grad_norm"] for report in _numbers(two, rank)["hybrid"]] for rank in range(2)]
    assert norms[0] == norms[1]
    plain = [report["grad_norm"] for report in _numbers(two)["reports"][: len(norms[0])]]
    assert norms[0] == pytest.approx(plain, rel=1e-5)


def test_both_ranks_say_the_same(two: Path) -> None:
    """The reduced numbers and the manifest are those of every rank."""
    first, second = _numbers(two, 0), _numbers(two, 1)
    assert first["manifest"] == second["manifest"]
    for a, b in zip(first["reports"], second["reports"], strict=True):
        assert {**a, **TIMES} == {**b, **TIMES}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_resumed_run_goes_on_bit_for_bit(request: pytest.FixtureRequest, num_ranks: int) -> None:
    """Six steps and 3 + resume + 3 have equal weights, moments, Adam steps, reports, rates and random draws."""
    folder: Path = request.getfixturevalue("one" if num_ranks == 1 else "two")
    straight, resumed = _tensors(folder, "straight"), _tensors(folder, "resumed")
    assert straight.keys() == resumed.keys()
    assert any(name.endswith("exp_avg_sq") for name in straight)
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    for rank in range(num_ranks):
        numbers = _numbers(folder, rank)
        assert numbers["draws"] == numbers["draws_resumed"]
        for a, b in zip(numbers["reports"][3:], numbers["reports_resumed"], strict=True):
            assert {**a, **TIMES} == {**b, **TIMES}
    assert _numbers(folder)["state"] == {"cursor": 12}


def test_two_ranks_draw_different_numbers(two: Path) -> None:
    """Each rank has random state of its own."""
    assert _numbers(two, 0)["draws"] != _numbers(two, 1)["draws"]


def test_a_disk_that_one_rank_cannot_write_to_is_told_to_all(two: Path) -> None:
    """Field notes G, disk full: both ranks leave the save together, nothing of it is left, and the next is whole."""
    words, others_words = (_numbers(two, rank)["full_disk"] for rank in (1, 0))
    for fault, left, refused, left_again, last in (words, others_words):
        assert (fault[0], left, left_again, last) == (errno.EFBIG, [], [], None)
        assert f"{two}/full/step-000003 could not be written: " in refused
    assert (words[0][1], others_words[0][1]) == ("File too large", "")
    marker = checkpoint.read_marker(two / "full" / "step-000003")
    checkpoint.verify(two / "full" / "step-000003", marker)
    assert marker.num_ranks == 2
    assert {"__0_0.distcp", "__1_0.distcp", "random-00001.msgpack", ".metadata"} <= marker.checksums.keys()


def test_another_number_of_ranks_can_resume(models: dict[str, Path], two: Path) -> None:
    """One rank resumes what two wrote, and learns what they would have."""
    resumed = Learner(make_config(models["tied"]), str(models["tied"]), two / "step-000003", CPU)
    assert resumed.step == 3
    for step in range(3, 6):
        rank_session.train(resumed, make_batch(step, 1))
    _assert_close(
        rank_session.whole(resumed._checkpointed(), "s"),
        {f"s/{name}": value for name, value in _tensors(two, "straight").items()},
        1e-5,
    )


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_bad_number_on_one_rank_skips_the_step_on_all(request: pytest.FixtureRequest, num_ranks: int) -> None:
    """NaN on the last rank alone leaves the weights of every rank as they were."""
    folder: Path = request.getfixturevalue("one" if num_ranks == 1 else "two")
    assert all(_numbers(folder, rank)["skipped"] for rank in range(num_ranks))
    before, after = _tensors(folder, "resumed"), _tensors(folder, "after_skip")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_export_is_a_hugging_face_model(two: Path) -> None:
    """from_pretrained reads the exported folder without a missing tensor: same weights, tied, with tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm, info = AutoModelForCausalLM.from_pretrained(two / "export", output_loading_info=True)
    assert not info["missing_keys"]
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    trained = _tensors(two, "after_skip")
    for name, parameter in lm.named_parameters():
        assert torch.equal(parameter.detach(), trained[f"model/{name}"])
    assert AutoTokenizer.from_pretrained(two / "export").eos_token == "t2"


def test_a_checkpoint_of_another_model_is_refused(models: dict[str, Path], one: Path) -> None:
    """Resuming with other weights than the checkpoint's names the folder."""
    with pytest.raises(CheckpointError, match="step-000003 does not fit"):
        Learner(make_config(models["untied"]), str(models["untied"]), one / "step-000003", CPU)
