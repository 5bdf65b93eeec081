"""Convert weights from and to other libraries. The names imported here are public; each library has its own file."""

from rnnscan.interop import cudnn as cudnn
from rnnscan.interop import safetensors as safetensors
from rnnscan.interop.caffe2 import from_caffe2 as from_caffe2
from rnnscan.interop.caffe2 import to_caffe2 as to_caffe2
from rnnscan.interop.caffe2_attention import from_caffe2_attention as from_caffe2_attention
from rnnscan.interop.caffe2_attention import to_caffe2_attention as to_caffe2_attention
from rnnscan.interop.cudnn import from_cudnn as from_cudnn
from rnnscan.interop.cudnn import to_cudnn as to_cudnn
from rnnscan.interop.dl4j import from_dl4j as from_dl4j
from rnnscan.interop.dl4j import to_dl4j as to_dl4j
from rnnscan.interop.flax import from_flax as from_flax
from rnnscan.interop.flax import to_flax as to_flax
from rnnscan.interop.gates import reorder_gates as reorder_gates
from rnnscan.interop.keras import from_keras as from_keras
from rnnscan.interop.keras import from_keras_weights as from_keras_weights
from rnnscan.interop.keras import to_keras as to_keras
from rnnscan.interop.nnx import from_nnx as from_nnx
from rnnscan.interop.nnx import to_nnx as to_nnx
from rnnscan.interop.onnx import from_onnx as from_onnx
from rnnscan.interop.onnx import onnx_attributes as onnx_attributes
from rnnscan.interop.onnx import to_onnx as to_onnx
from rnnscan.interop.torch import carry_from_torch as carry_from_torch
from rnnscan.interop.torch import carry_to_torch as carry_to_torch
from rnnscan.interop.torch import from_torch as from_torch
from rnnscan.interop.torch import to_torch as to_torch
