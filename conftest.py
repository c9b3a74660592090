"""What every test and every docstring's example starts from."""

import pytest
import torch

import urnn

torch.set_num_threads(1)  # small tensors; and tests run in several processes at once


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace |= {"torch": torch, "urnn": urnn}
