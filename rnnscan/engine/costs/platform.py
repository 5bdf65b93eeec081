"""The platform that a program is for, as far as it is known while the program is traced."""

from typing import Any

import jax


def platform_of(tree: Any) -> str | None:
    """The platform of the devices of arrays, as JAX names it: "cpu", "gpu", "tpu".

    Args:
        tree: a pytree of arrays. A traced array has devices if its type has a mesh.

    Returns:
        The platform of the devices that an array is committed to, or of its mesh; None if no array has either.
    """
    return next(filter(None, map(_of_array, jax.tree.leaves(tree))), None)


def default_platform() -> str:
    """The platform of `jax.set_mesh` or `jax.default_device` if one is set, else that of JAX's default backend."""
    config: Any = jax.config  # Its options have no types.
    device = config.jax_default_device
    chosen = device if isinstance(device, str | None) else device.platform
    return _of_mesh(jax.sharding.get_abstract_mesh()) or chosen or jax.default_backend()


def _of_array(leaf: Any) -> str | None:
    if not isinstance(leaf, jax.Array):
        return None
    if not isinstance(leaf, jax.core.Tracer) and getattr(leaf, "committed", False):
        return next(iter(leaf.devices())).platform
    return _of_mesh(getattr(getattr(jax.typeof(leaf), "sharding", None), "mesh", None))


def _of_mesh(mesh: Any) -> str | None:
    device = getattr(mesh, "abstract_device", None)
    if device is None:
        return None
    kind = device.device_kind.lower()
    # jax 0.10.0 has the kind of device only, such as "cpu", "NVIDIA H200" and "TPU v5 lite".
    return getattr(device, "platform", None) or next((name for name in ("cpu", "tpu") if kind.startswith(name)), "gpu")
