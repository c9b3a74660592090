"""What every test and every docstring's example starts from."""

import pytest
import torch

import urnn


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace |= {"torch": torch, "urnn": urnn}
