"""Custom calls: operations of a program that a library outside XLA runs, by the name of a target."""

from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, sdy, stablehlo


# LAPACK's kernels by the dtypes that they are for: single, double, complex, double complex.
_LAPACK = {
    "sdcz": ("potrf", "geqrf", "geev", "gesdd", "getrf", "gehrd", "gees", "trsm", "gtsv"),
    "sd": ("orgqr", "syevd", "sytrd"),
    "cz": ("ungqr", "heevd", "hetrd"),
}
_SOLVER = ("getrf", "geqrf", "orgqr", "potrf", "syevd", "gesvd", "gesvdj", "sytrd")
_CPU = {f"lapack_{one}{name}_ffi" for dtypes, names in _LAPACK.items() for one in dtypes for name in names}
_GPU = {
    *(f"{library}solver_{name}_ffi" for library in ("cu", "hip") for name in _SOLVER),
    *("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation", "hipsolver_gesdd_ffi", "cusparse_gtsv2_ffi"),
    *("cu_threefry2x32_ffi", "hip_threefry2x32_ffi"),
}
# A `tpu_custom_call` is a Pallas kernel. It runs on the TPU alone.
_TPU = {"Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK", "tpu_custom_call"}
_XLA = {
    *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "AllocateBuffer"),
    *("shape_assertion", "stablehlo.dynamic_approx_top_k", "stablehlo.dynamic_reduce_window"),
    *("stablehlo.dynamic_rng_bit_generator", "stablehlo.dynamic_top_k"),
}

# The targets that a program may call. `jax.export` guarantees that their meaning stays, and none runs code that the
# program brings along. So two that it guarantees are left out: `mosaic_gpu_v2`, whose argument is compiled to code for
# the host too, and `tf.call_tf_function`.
ALLOWED = frozenset(_CPU | _GPU | _TPU | _XLA)

# Operations that exchange data with the host.
_HOST = frozenset({"stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"})


def foreign_calls(serialized: bytes) -> list[str]:
    """The targets that a program calls and that are not allowed, and its exchanges with the host.

    Args:
        serialized: a StableHLO module, `jax.export.Exported.mlir_module_serialized`.

    Raises:
        ValueError: if it is not such a module. It may have the dialects StableHLO, CHLO and Shardy only.
    """
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    foreign: set[str] = set()

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target not in ALLOWED:
                foreign.add(target)
        elif operation.name in _HOST:
            foreign.add(operation.name)
        return ir.WalkResult.ADVANCE

    with context:
        stablehlo.deserialize_portable_artifact(context, serialized).operation.walk(visit)
    return sorted(foreign)
