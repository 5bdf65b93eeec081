"""Export a function or net to a folder that runs without its code: StableHLO, parameters and a manifest."""

from rnnscan.export.load import load as load
from rnnscan.export.onnx import to_onnx as to_onnx
from rnnscan.export.predictor import Predictor as Predictor
from rnnscan.export.save import save as save
