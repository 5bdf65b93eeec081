"""The small training loop that users, notebooks and the command line share: a byte-level language model."""

try:
    from rnnscan.train.checkpoint import RunDirectory as RunDirectory
    from rnnscan.train.config import TrainConfig as TrainConfig
    from rnnscan.train.language_model import LanguageModel as LanguageModel
    from rnnscan.train.loop import TrainState as TrainState
    from rnnscan.train.loop import evaluate as evaluate
    from rnnscan.train.loop import initial_state as initial_state
    from rnnscan.train.loop import train as train
    from rnnscan.train.loop import window_loss as window_loss
    from rnnscan.train.text import Text as Text
    from rnnscan.train.text import read_text as read_text
except ModuleNotFoundError as error:
    raise ImportError(
        f"rnnscan.train: the extra 'train' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[train]" in the checkout of rnnscan.'
    ) from error
