from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.cluster import LISTEN_PORT, ROOT, Cluster, cluster
from tests.network.layout import Network, laid_out, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
WHOLE = pytest.mark.skipif(
    "PRL_NETWORK" not in os.environ, reason="runs the default job over five hosts, minutes on two cores: PRL_NETWORK=1"
)


def _python(network: Network, host: str, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A short program on a host."""
    return subprocess.run(
        network.on(host, sys.executable, "-c", program),
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def two() -> Iterator[Network]:
    """A controller's host and a trainer's."""
    with laid_out("controller", "trainer-0") as network:
        yield network


MEET = "from prl.network import meeting_address, interface_of; a = meeting_address({hosts}); print(a, interface_of(a))"


def test_hosts_meet_where_the_others_reach_them(two: Network) -> None:
    """Seen from a trainer's host, the controller comes in by the cable; alone, a host meets itself on loopback."""
    hosts = [two.address("trainer-0"), two.address("controller")]
    assert _python(two, "trainer-0", MEET.format(hosts=hosts)).stdout == f"{two.address('trainer-0')} cable\n"
    assert _python(two, "trainer-0", MEET.format(hosts=["127.0.0.1"])).stdout == "127.0.0.1 lo\n"


CONTROLLER = """
import asyncio, sys
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks

async def main():
    ranks = Ranks(1)
    gathering = Gathering(ranks, "the right token")
    gathering.listen(sys.argv[1], int(sys.argv[2]))
    await gathering.gather()
    print("here", ranks.present(), flush=True)
    await ranks.watch(2.0)
    print("hung", ranks.hung, flush=True)

asyncio.run(main())
"""


def test_a_rank_crosses_the_network_with_its_token_alone(two: Network) -> None:
    """A wrong token is refused with the reason; the right one is taken; a cable that is pulled is noticed in time."""
    address = two.address("controller")
    where = {"PRL_TRAINER_ADDRESS": f"{address}:{LISTEN_PORT}", "RANK": "0", "WORLD_SIZE": "1"}
    worker = "import sys; from prl.trainer.worker import main; sys.exit(main())"
    controller = subprocess.Popen(
        two.on("controller", sys.executable, "-c", CONTROLLER, address, str(LISTEN_PORT)),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    rank = None
    try:
        assert controller.stdout is not None
        refused = _python(two, "trainer-0", worker, **where, PRL_TOKEN="a guess")
        assert refused.returncode == 1
        assert "refused rank 0: wrong token" in refused.stderr
        rank = subprocess.Popen(
            two.on("trainer-0", sys.executable, "-c", worker),
            env={**os.environ, "PYTHONPATH": str(ROOT), **where, "PRL_TOKEN": "the right token"},
        )
        assert controller.stdout.readline().startswith("here {")
        two.cut("trainer-0")
        assert controller.stdout.readline() == "hung {0}\n"
        assert controller.wait(10) == 0
    finally:
        two.heal("trainer-0")
        for child in filter(None, (controller, rank)):
            child.kill()
            child.wait()
        if controller.stdout is not None:
            controller.stdout.close()


START_S = 900.0
TIME = {"engine.start_timeout_s": "900", "trainer.start_timeout_s": "900", "trainer.gather_timeout_s": "900"}
SMALL = {
    "run.num_steps": "100000",  # stopped when all was seen: a quiet machine would be done before a cable is healed
    "run.checkpoint_every": "2",
    "pipeline.groups_per_step": "4",
    "pipeline.group_size": "4",
    "trainer.num_replicas": "2",
    "trainer.heartbeat_timeout_s": "10",
    "engine.token_timeout_s": "20",
    "engine.max_num_seqs": "16",
    "eval.num_samples": "0",
}
TRAINERS = ["trainer-0", "trainer-1"]


def _audit(job: Cluster) -> str:
    """What `prl audit` says, if it finds nothing wrong."""
    command = [sys.executable, "-m", "prl", "audit", str(job.run_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


ENGINES = ["engine-0", "engine-1"]


@WHOLE
@pytest.mark.timeout(2400)
def test_the_default_job_runs_over_five_hosts_and_a_cable_that_is_pulled(tmp_path: Path) -> None:
    """An engine that cannot be reached is taken out, the run goes on, and once healed it has the current weights again.

    Then the cable to a rank is pulled for longer than its deadline: all ranks come back from the checkpoint. At the end
    nothing is lost and nothing was trained twice, and both torchruns leave with 0.
    """
    settings = {**SMALL, **TIME}
    with laid_out("controller", *TRAINERS, *ENGINES) as network, cluster(network, tmp_path) as job:
        job.start_ranks(TRAINERS)
        servers = job.start_servers(ENGINES, settings)
        job.start_controller({**settings, **servers})
        job.wait_until("step 3", lambda: job.step >= 3, START_S)

        network.cut("engine-1")
        job.wait_until("the loss", lambda: job.happened("an engine is lost"), 120)
        step = job.step
        job.wait_until("two steps on one engine", lambda: job.step >= step + 2, 200)
        network.heal("engine-1")
        job.wait_until("the return", lambda: job.happened("an engine serves again"), 200)

        network.cut("trainer-1")
        job.wait_until("the death", lambda: job.happened("the trainer is started again"), 120)
        network.heal("trainer-1")
        job.wait_until("the return", lambda: job.happened("the trainer goes on"), 300)
        again = job.step
        job.wait_until("two steps of all", lambda: job.step >= again + 2, 200)
        job.stop("controller")
        assert job.wait("controller", 600) == 0, job.logs()
        assert [job.wait(f"torchrun on {host}", 120) for host in TRAINERS] == [0, 0]
    assert f"{'steps':28}{job.step:>10,}" in _audit(job)
    back = next(event for event in job.events() if event["event"] == "an engine serves again")
    assert back["engine"] == "engine-1"
    assert back["version"] >= step + 2
