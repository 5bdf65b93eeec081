"""`torch.nn.LSTM` and `torch.nn.GRU`, on torch's accelerator if it has one, else on the processor.

On the processor torch and XLA share one process with separate threads; neither slows the other down (measured). On a
busy machine torch's threads spin while they wait for each other, and its times jump.
"""

from benchmarks.machine import processors
from benchmarks.result import Runner
from benchmarks.workloads import Workload


DESCRIPTIONS = {"torch": "`torch.nn.LSTM` or `torch.nn.GRU`, with as many threads as JAX has"}


def prepare_torch(workload: Workload, *, tensor_float_32: bool) -> Runner:
    """Make the module and its input. `tensor_float_32` allows TensorFloat-32 products on a GPU."""
    import torch

    torch.set_num_threads(processors())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tensor_float_32
    torch.manual_seed(0)
    shape = workload.shape
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[workload.family]
    module = layer(shape.features, shape.hidden, workload.layers).to(device)
    xs = torch.randn(shape.time, shape.batch, shape.features, device=device, requires_grad=True)

    def loss() -> torch.Tensor:
        ys = module(xs)[0]
        return (ys * ys).sum()

    def forward() -> None:
        with torch.no_grad():
            loss()
        wait()

    def train() -> None:
        module.zero_grad(set_to_none=True)
        xs.grad = None
        loss().backward()
        wait()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    return Runner(forward, train)
