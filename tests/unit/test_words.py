"""Numbers of things, in words."""

import pytest

from core.words import counted


@pytest.mark.parametrize(
    "number, unit, said",
    [
        (1, "episode", "1 episode"),
        (0, "episode", "0 episodes"),
        (1024, "episode", "1,024 episodes"),
        (1, "life", "1 life"),
        (2, "life", "2 lives"),
        (2, "quantity", "2 quantities"),
        (2, "display", "2 displays"),
        (3, "training seed", "3 training seeds"),
    ],
)
def test_a_number_of_things_agrees_with_its_unit(number: int, unit: str, said: str) -> None:
    assert counted(number, unit) == said
