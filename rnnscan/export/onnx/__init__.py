"""Write nets and functions as ONNX files. The name imported here is public."""

from rnnscan.export.onnx.write import to_onnx as to_onnx
