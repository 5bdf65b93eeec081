"""The convolutional cells, over one to three spatial axes."""

from rnnscan import cells
from zoo.case import Case


CASES = {
    "ConvLSTM": Case(cells.ConvLSTM(2), features=(3, 3, 3), rows_alone=False),
    "ConvLSTM one axis": Case(cells.ConvLSTM(2, kernel_size=(2,), use_bias=False), features=(4, 3), rows_alone=False),
    "ConvLSTM three axes": Case(cells.ConvLSTM(2, kernel_size=(2, 1, 3)), features=(2, 2, 2, 3), rows_alone=False),
    "ConvLSTM strided": Case(
        cells.ConvLSTM(2, padding="valid", strides=(1, 2), kernel_size=(2, 3)), features=(4, 5, 3), rows_alone=False
    ),
    "ConvLSTM dilated": Case(cells.ConvLSTM(2, dilation=2, kernel_size=(3,)), features=(6, 3), rows_alone=False),
    "ConvGRU": Case(cells.ConvGRU(2), features=(3, 3, 3), rows_alone=False),
    "ConvGRU reset before": Case(
        cells.ConvGRU(2, kernel_size=(3,), reset_after=False), features=(5, 3), rows_alone=False
    ),
    "ConvGRU strided": Case(
        cells.ConvGRU(2, kernel_size=(3,), strides=2, use_bias=False), features=(5, 3), rows_alone=False
    ),
}
