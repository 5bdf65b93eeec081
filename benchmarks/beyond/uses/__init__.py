"""The uses, by name."""

from benchmarks.beyond.use import Use
from benchmarks.beyond.uses import (
    automaton,
    caches,
    control_flow,
    ctc,
    delta_rule,
    differentiable_computer,
    differential_equations,
    dtypes,
    hidden_markov,
    iterations,
    kalman,
    large_steps,
    linear_attention,
    meta_learning,
    mlstm,
    neural_turing_machine,
    optimal_control,
    physics,
    sampling,
    scalars,
    soft_dtw,
    state_space,
    world_model,
)


USES: dict[str, Use] = (
    kalman.USES
    | hidden_markov.USES
    | ctc.USES
    | soft_dtw.USES
    | differential_equations.USES
    | world_model.USES
    | state_space.USES
    | linear_attention.USES
    | mlstm.USES
    | delta_rule.USES
    | scalars.USES
    | large_steps.USES
    | caches.USES
    | sampling.USES
    | physics.USES
    | automaton.USES
    | meta_learning.USES
    | neural_turing_machine.USES
    | differentiable_computer.USES
    | control_flow.USES
    | dtypes.USES
    | optimal_control.USES
    | iterations.USES
)
