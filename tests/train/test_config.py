import pytest

import rnnscan as rs
from rnnscan.train import LanguageModel, TrainConfig


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def test_a_config_makes_the_model_and_the_memory_choice() -> None:
    config = TrainConfig(cell="rnn", hidden=3, layers=2, embedding=5, recompute="all", segment=(8, 2))
    assert config.model == LanguageModel(cell="rnn", hidden=3, layers=2, embedding=5)
    assert config.memory == rs.Memory(recompute="all", segment=(8, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, r"TrainConfig: `batch` must be at least 1; got 0\."),
        ({"window": 0}, r"TrainConfig: `window` must be at least 1; got 0\."),
        ({"steps": -1}, r"TrainConfig: `steps` must be at least 1; got -1\."),
        ({"checkpoint_every": 0}, r"TrainConfig: `checkpoint_every` must be at least 1; got 0\."),
        ({"learning_rate": 0.0}, r"TrainConfig: `learning_rate` must be above 0; got 0\.0\."),
        ({"learning_rate": float("nan")}, r"TrainConfig: `learning_rate` must be above 0; got nan\."),
        ({"hidden": 0}, r"LanguageModel: `hidden` must be at least 1; got 0\."),
        ({"segment": (2, 8)}, r"Memory: nested segments must get shorter from left to right"),
        ({"segment": 0}, r"Memory: `segment` must be a number of steps of at least 1"),
    ],
)
def test_values_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


@pytest.mark.bad_input
def test_a_name_in_place_of_a_tuple_of_names_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a tuple of names; got the string 'gates'\. Write recompute="):
        TrainConfig(recompute="gates")
