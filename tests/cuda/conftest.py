"""The device of these tests: CUDA, or the one that GPT_TEST_DEVICE names, to try the tests themselves."""

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(os.environ.get("GPT_TEST_DEVICE", "cuda"))
