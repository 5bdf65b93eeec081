"""The projects whose tests run, and what they need."""

from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


class SuiteError(Exception):
    """A suite could not run, or its result means nothing. The message says what to do."""


@dataclass(frozen=True)
class Project:
    """A project that scans.

    Attributes:
        name: its folder among the checkouts.
        repository: where it is from, as owner/name; empty for a project that is not listed here.
        tests: the tests that scan, or their files or folders, from the root of the checkout; empty: pytest's choice.
        packages: the packages that its tests need beside rnnscan and pytest, as a package index calls them.
        options: more arguments of pytest.
    """

    name: str
    repository: str = ""
    tests: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


PROJECTS = {
    project.name: project
    for project in (
        Project(
            "equinox",
            "patrick-kidger/equinox",
            tests=tuple(f"tests/test_{name}.py" for name in ("module", "nn", "progress_meter", "scan", "while_loop")),
            packages=("beartype", "jaxtyping", "optax", "wadler_lindig"),
        ),
        Project(
            "diffrax",
            "patrick-kidger/diffrax",
            # Its other tests make no call, and most of them compile for long. So does test_against of test_adjoint.py:
            # for more than 15 minutes with jax 0.10.0. With jaxlib 0.10.2 XLA's compiler ends the process.
            tests=(
                *(
                    f"test/test_adjoint.py::test_{name}"
                    for name in (
                        *("adjoint_seminorm", "closure_errors", "closure_fixed", "implicit", "backprop_ts"),
                        *("sde_against", "implicit_runge_kutta_direct_adjoint", "forward_mode_runge_kutta"),
                    )
                ),
                "test/test_global_interpolation.py::test_interpolation_coeffs",
                "test/test_global_interpolation.py::test_rectilinear_interpolation_coeffs",
                "test/test_global_interpolation.py::test_cubic_interpolation_no_deriv0",
                "test/test_global_interpolation.py::test_cubic_interpolation_deriv0",
                "test/test_global_interpolation.py::test_interpolation_classes",
                "test/test_interpolation.py",
                "test/test_misc.py",
                "test/test_saveat_solution.py::test_subsaveat",
                "test/test_underdamped_langevin.py",
            ),
            packages=("beartype", "diffrax", "equinox", "jaxtyping", "lineax", "optimistix", "optax", "scipy"),
        ),
        Project(
            "dynamax",
            "probml/dynamax",
            tests=("dynamax",),
            packages=("fastprogress", "jaxtyping", "optax", "scikit-learn", "tfp-nightly"),
        ),
        Project(
            "distrax",
            "google-deepmind/distrax",
            tests=("distrax/_src/utils/hmm_test.py",),
            packages=("absl-py", "chex", "dm-haiku", "tfp-nightly"),
        ),
        Project(
            "rlax",
            "google-deepmind/rlax",
            tests=tuple(
                f"rlax/_src/{name}_test.py"
                for name in ("losses", "multistep", "nonlinear_bellman", "value_learning", "vtrace")
            ),
            packages=("absl-py", "chex", "distrax", "dm-env", "dm-haiku"),
        ),
        Project(
            "jaxley",
            "jaxleyverse/jaxley",
            # Integrations of minutes, and those that need NEURON, are left out.
            tests=("tests/jaxley_identical/test_grad.py", "tests/test_clamp.py", "tests/test_data_feeding.py"),
            packages=("jaxley-mech", "matplotlib", "networkx", "pandas", "tridiax"),
        ),
        Project(
            "cuthbert",
            "state-space-models/cuthbert",
            tests=tuple(
                f"tests/{name}.py"
                for name in (
                    *("cuthbert/discrete/test_discrete", "cuthbert/enkf/test_enkf", "cuthbert/factorial/test_discrete"),
                    *(
                        "cuthbert/factorial/test_kalman",
                        "cuthbert/gaussian/test_kalman",
                        "cuthbert/gaussian/test_moments",
                    ),
                    *("cuthbert/gaussian/test_taylor", "cuthbert/smc/test_particle_filters"),
                )
            ),
            packages=("chex", "cuthbert", "cuthbertlib", "numba"),
        ),
        Project(
            "optimistix",
            "patrick-kidger/optimistix",
            # Its other tests make no call, or compile for long.
            tests=("tests/test_best_so_far.py", "tests/test_lbfgs_linear_operator.py", "tests/test_misc.py"),
            packages=("beartype", "equinox", "jaxtyping", "lineax", "optax", "optimistix", "pytest-benchmark"),
        ),
    )
}
# The folder must hold these; the others run where they are there.
NAMED = ("equinox", "diffrax", "dynamax")


def projects_in(folder: Path, names: list[str] | None) -> list[Project]:
    """The projects to run, each with a checkout and its packages.

    Args:
        folder: holds a checkout of each project, in a folder that bears its name.
        names: projects by name, and other folders of `folder`, whose tests pytest finds; None: all that are known.

    Raises:
        SuiteError: if a checkout or a package is missing.
    """
    if names is None:
        names = [*NAMED, *(name for name in PROJECTS if name not in NAMED and (folder / name).is_dir())]
    chosen = [PROJECTS.get(name, Project(name)) for name in names]
    absent = [project for project in chosen if not (folder / project.name).is_dir()]
    if absent:
        sources = ", ".join(_source(project) for project in absent)
        raise SuiteError(
            f"There is no checkout of {', '.join(project.name for project in absent)} in {folder}. "
            f"Clone there: {sources}. Or name projects that are there, with --project."
        )
    missing = {package: project.name for project in chosen for package in project.packages if not _is_there(package)}
    if missing:
        needed = ", ".join(f"{package} (for {project})" for package, project in missing.items())
        raise SuiteError(
            f"Packages are missing: {needed}. Nothing is installed here. Run `python -m pip install "
            f"{' '.join(missing)}` in this environment, with the jax that it has."
        )
    return chosen


def without(projects: list[Project], left_out: list[str]) -> list[Project]:
    """The projects without some of their tests, each written as project/tests.

    Raises:
        SuiteError: if tests that are left out are not listed for a project.
    """
    listed = {f"{project.name}/{tests}" for project in projects for tests in project.tests}
    unknown = set(left_out) - listed
    if unknown:
        raise SuiteError(
            f"No project lists {', '.join(sorted(unknown))}. Leave out some of {', '.join(sorted(listed))}."
        )
    return [
        replace(project, tests=tuple(tests for tests in project.tests if f"{project.name}/{tests}" not in left_out))
        for project in projects
    ]


def _source(project: Project) -> str:
    return f"github.com/{project.repository}" if project.repository else f"{project.name}, which is not known here"


def _is_there(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
