"""The configuration: one TOML, frozen structs, every constraint in the types.

Unknown keys are errors that name the nearest known one; numbers are finite and in range before anything starts; checks
that span fields live in ``check.py``, the tables of the algorithm in ``config_algorithm.py``, those of the data,
evaluation and LoRA in ``config_data.py``, ``config_eval.py`` and ``config_lora.py``, those of the control address, the
page and trackers in ``config_control.py``, ``config_view.py`` and ``config_trackers.py``, those of environments in
``config_environment.py``, that of weight updates in ``config_weights.py``. The doc of a field is the string under it.
Units are in the name; counts start with ``num_``. Nothing here imports torch or vLLM.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from prl.config_algorithm import AdvantageConfig, KlConfig, LossConfig, OverlongConfig
from prl.config_control import ControlConfig
from prl.config_data import DataConfig
from prl.config_environment import EnvironmentConfig, GatewayConfig
from prl.config_eval import EvalConfig
from prl.config_fields import Decay, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table
from prl.config_lora import LoraConfig
from prl.config_simulate import SimulateConfig
from prl.config_trackers import TrackerConfig
from prl.config_view import ViewConfig
from prl.config_weights import WeightsConfig

Dtype = Literal["float32", "bfloat16", "float16"]


class RunConfig(Table, frozen=True, kw_only=True):
    """``[run]``: how long, and what is kept."""

    name: str = "run"
    """Folder under ``runs/``; ``--run-dir`` names another place."""
    num_steps: NonNegative = 100
    """Optimiser steps in all. A resumed run counts those already done."""
    checkpoint_every: NonNegative = 0
    """Steps between checkpoints; 0 writes one at the end only."""
    keep_checkpoints: Positive = 3
    """Newest checkpoints that are kept; older ones are removed when a new one is complete."""
    disk_timeout_s: PositiveFloat = 600.0
    """Generation pauses while the disk is full or read-only; after this long the run ends, to be resumed."""
    stall_timeout_s: PositiveFloat = 120.0
    """End the run, saying who waits for whom, when nothing moved for this long."""
    samples_every: NonNegative = 1
    """Write the samples of every n-th step to samples.jsonl; 0 writes none."""
    timeline: bool = True
    """Write what each engine, trainer rank and the controller did, and when, to timeline.jsonl, and how full slots and
    queues were each second to gauges.jsonl: at most 150 MB, thinned where a run is longer."""


class PipelineConfig(Table, frozen=True, kw_only=True):
    """``[pipeline]``: how generation and training overlap."""

    mode: Literal["pipeline", "conventional"] = "pipeline"
    """``conventional`` generates ``steps_per_round`` batches, then trains on them: the paper's baseline."""
    max_lag: NonNegative | None = None
    """Hard bound on the lag of a sample's oldest token, in steps; 0 is synchronous; absent is the paper's mode, where
    the lag follows from how much the engines hold."""
    target_ess: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Hold the effective sample size of a batch here: the groups (without ``max_lag``, the streams) under way are moved
    between a synchronous run's and what ``max_lag`` (or the engines) allow, so that lag is spent where it costs little.
    Absent: as many as are allowed are under way."""
    batches_ahead: Positive = 2
    """In the paper's mode, batches of groups that are ready or in a step when admission stops: 2 are one in the trainer
    and the next one complete beside it. More keep the engines full where lengths come in waves, and age."""
    groups_per_step: Positive = 8
    """Prompts per optimiser step."""
    group_size: Positive = 8
    """Completions per prompt."""
    steps_per_round: Positive = 8
    """G: optimiser steps per round in conventional mode."""
    rollout_timeout_s: PositiveFloat = 300.0
    """Deadline of one prompt's whole rollout, scoring included; past it the rollout is dropped and counted."""
    max_consecutive_drops: Positive = 100
    """Rollouts in a row that come to nothing before the run ends with their reason."""


class EngineConfig(Table, frozen=True, kw_only=True):
    """``[engine]``: what samples."""

    kind: Literal["auto", "vllm", "transformers", "server", "simulated"] = "auto"
    """``auto`` takes vLLM where it is installed and transformers' continuous batching elsewhere, and says which.
    ``server`` starts none here: all are ``servers``."""
    count: Positive = 1
    """Number of engines started here, each with GPUs of its own, or with cores of its own where there are enough; not
    read where ``kind = "server"``."""
    servers: list[str] = field(default_factory=list)
    """Addresses of ``vllm serve`` processes, such as ``http://host:8000``: each is one engine more, beside those that
    are started here, with ``max_num_seqs`` streams. ``docs/servers.md`` says how they are started."""
    api_key_env: str | None = None
    """The environment variable that holds the API key of ``servers``; absent: they want none."""
    dtype: Dtype = "float32"
    """Type the engine holds and computes in."""
    max_num_seqs: Positive = 64
    """Most streams that one engine runs at once."""
    max_model_len: Positive = 1024
    """Context length in tokens: prompt plus completion."""
    placement: Literal["spread", "together"] = "spread"
    """Where the members of a group run: each on the least loaded engine, or all on the one that is least loaded at the
    first (which then computes a long prompt's prefix once)."""
    stream_interval: Positive = 16
    """Decode steps between two messages of an engine, which carry the tokens of all its streams: larger costs the
    controller less and shows tokens later. A stream's last tokens, and all tokens at a pause, come at once."""
    tensor_parallel_size: Positive = 1
    """GPUs (or core sets) that one engine spans; passed to vLLM."""
    kv_cache_gib: PositiveFloat = 1.0
    """KV cache of one engine on a CPU, in GiB."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of a GPU's memory that one engine may use."""
    start_timeout_s: PositiveFloat = 300.0
    """Deadline for one engine to be ready."""
    min_engines: Positive = 1
    """An engine that dies is started again in the background. Where fewer than these serve for
    ``recovery_timeout_s``, the run ends."""
    max_restarts: NonNegative = 10
    """Restarts in a row, none of which led to an engine that served for ten minutes, after which its place stays
    empty; the run goes on while ``min_engines`` are left."""
    recovery_timeout_s: PositiveFloat = 600.0
    """How long the run waits for engines that are started again, the time in which the trainer is not counted."""
    token_timeout_s: PositiveFloat = 60.0
    """Longest wait for the next token of an open stream while the engine is not paused."""

    @property
    def num_local(self) -> int:
        """Engines that are started here."""
        return 0 if self.kind == "server" else self.count

    @property
    def num_engines(self) -> int:
        """All engines that the run begins with."""
        return self.num_local + len(self.servers)


class SamplingConfig(Table, frozen=True, kw_only=True):
    """``[sampling]``: how training rollouts are sampled. Filters that change the distribution do not exist here."""

    temperature: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """Divides the logits, in the engine and in the trainer."""
    max_tokens: Positive = 256
    """Most tokens of one completion, the stop token included."""
    seeded: bool = False
    """Seed every stream by (seed, prompt, member): what is sampled then depends on the weights and no longer on the
    order of requests. Costs the engine a little at every step."""


class TrainerConfig(Table, frozen=True, kw_only=True):
    """``[trainer]``: what learns."""

    kind: Literal["fsdp", "simulated"] = "fsdp"
    """``fsdp`` is a torchrun child with FSDP2; ``simulated`` needs no torch."""
    num_ranks: Positive = 1
    """Trainer processes, one per GPU (or per core)."""
    num_replicas: Positive = 1
    """Hybrid sharding: so many copies of the model, each sharded over num_ranks / num_replicas neighbouring ranks. With
    one copy a host only gradients cross the network, at num_replicas times the memory; 1 shards over all ranks."""
    launch: Literal["torchrun", "external"] = "torchrun"
    """``external`` waits for ranks that you, or a scheduler, start with torchrun anywhere, pointed at ``listen``."""
    listen: str = "127.0.0.1:0"
    """host:port where ranks connect; port 0 picks a free one. Beyond loopback, ranks must present PRL_TOKEN."""
    gather_timeout_s: PositiveFloat = 1800.0
    """How long the run waits for external ranks to connect, at its start and each time they have to come back."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the ranks compute; ``auto`` takes CUDA where torch sees it."""
    learning_rate: PositiveFloat = 1e-6
    """Peak of the schedule."""
    warmup_steps: NonNegative = 0
    """Steps of linear warm-up from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: hold, or fall to 0 at ``run.num_steps``."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decays."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled decay."""
    grad_clip: PositiveFloat = 1.0
    """Largest global gradient norm."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward and backward pass; master weights and optimiser state are always float32."""
    max_tokens_per_microbatch: Positive = 4096
    """Tokens packed into one forward pass of one rank, what sequences share counted with each. A longer single sequence
    gets a micro-batch of its own."""
    share_prefixes: bool = True
    """Compute once what sequences of a micro-batch begin with in common: a group's prompt, and its answers up to where
    they part. The numbers are the same. Not done with flash attention, nor for models with sliding windows."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    max_restarts: NonNegative = 3
    """Times that a trainer whose rank died or hung is started again, in one run: from the newest checkpoint, and the
    steps after it again from the journal. The engines go on meanwhile. Ranks that others start may die as often of the
    first start besides."""
    heartbeat_timeout_s: PositiveFloat = 30.0
    """A rank that gave no sign of life for this long hangs: it is killed."""
    max_skipped_steps: Positive = 5
    """Consecutive steps with a non-finite loss or gradient that end the run."""
    start_timeout_s: PositiveFloat = 300.0
    """Deadline for all ranks to be ready."""
    step_timeout_s: PositiveFloat = 600.0
    """Deadline of one training step, and of one save or export."""

    @property
    def num_local_ranks(self) -> int:
        """Ranks that are started here."""
        return 0 if self.launch == "external" else self.num_ranks


class RewardConfig(Table, frozen=True, kw_only=True):
    """``[[rewards]]``: one reward; the score is the weighted sum of all."""

    name: str
    """A built-in name, an entry point in group ``prl.rewards``, or ``package.module:name``."""
    weight: Annotated[float, Meta(ge=-1e6, le=1e6)] = 1.0
    """Factor in the sum."""
    gate: bool = False
    """The other rewards count only where this one gives more than 0, and are asked only then."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one call, with its retries and the pauses before them."""
    max_retries: NonNegative = 2
    """Times that a call is tried again which failed for a reason that may pass: a service that is down, a worker that
    was killed. The pauses before double, from half a second. Never after a bug, a NaN, or a refused request."""
    concurrency: Positive = 64
    """Calls under way at once."""
    on_failure: Literal["drop", "stop"] = "drop"
    """What a failed or late call does: ``drop`` leaves the completion out of its group and counts it, ``stop`` ends the
    run. An exception that is a bug (TypeError, NameError, AttributeError, ...) always ends the run."""
    max_failures: Positive = 64
    """Failed calls in a row that end the run where they would come back, and pause the reward where they may pass."""
    recovery_timeout_s: PositiveFloat = 300.0
    """How long a paused reward is probed, one call at a time, before the run ends. No completion is dropped meanwhile,
    and the deadlines of rollouts and evaluations stand still."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of a reward that is made from options. ``"env:NAME"`` is what that environment variable holds;
    a secret that is given otherwise (``api_key``, ``headers``) is hidden in every file that the run writes."""


class Config(Table, frozen=True, kw_only=True):
    """The whole TOML."""

    model: str
    """``builtin:tiny-math``, a Hugging Face folder, or a hub name."""
    seed: NonNegative = 0
    """Seeds the data order, the sampler and the trainer."""
    run: RunConfig = RunConfig()
    pipeline: PipelineConfig = PipelineConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    trainer: TrainerConfig = TrainerConfig()
    lora: LoraConfig = LoraConfig()
    loss: LossConfig = LossConfig()
    kl: KlConfig = KlConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    overlong: OverlongConfig = OverlongConfig()
    weights: WeightsConfig = WeightsConfig()
    data: DataConfig = DataConfig()
    eval: EvalConfig = EvalConfig()
    control: ControlConfig = ControlConfig()
    view: ViewConfig = ViewConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    gateway: GatewayConfig = GatewayConfig()
    simulate: SimulateConfig = SimulateConfig()
    rewards: list[RewardConfig] = field(default_factory=list)
    """At least one is needed to train, unless an environment gives rewards of its own: all of them are added."""
    trackers: list[TrackerConfig] = field(default_factory=list)
    """None: the run's folder alone has the curves."""
