"""What tests and ``vllm_probe_host.py`` agree on: files by which a core is told what to do and tells what it did."""

from __future__ import annotations

HOST = "tests.engines.vllm_probe_host"
FOLDER = "PRL_TEST_PROBE_FOLDER"
"""Environment variable with the folder of the files."""
FORGET_REPACKING = "forget-repacking"
"""While it exists, tied heads are not packed again after a load."""
DENY_TWINS = "deny-twins"
"""While it exists, no model has a twin, so that vLLM reloads in place."""
NUM_REQUESTS = "num-requests"
"""How many requests the worker that stepped last holds."""
SAMPLE_OTHERWISE = "sample-otherwise.json"
"""While it exists, streams are sampled with these attributes of ``SamplingParams`` in place of what was asked for."""
PAUSE_ASKED = "pause-asked"
"""Comes to be when a pause is before the core, whether or not it can see it."""
