"""The site builds without warnings and without a network."""

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import types

import pytest

from pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_built(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()


def test_language_models_get_a_list_of_the_pages_and_their_sources(site):
    listed = re.findall(r"^- \[[^\]]+\]\((.*)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    pages |= {"changelog.html"} | {
        f"notebooks/{notebook.stem}.html" for notebook in (ROOT / "notebooks").glob("*.ipynb")
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == pages
    assert all((site / page).is_file() for page in listed)
    whole = (site / "llms-full.txt").read_text()
    assert "# Quick start\n" in whole
    assert (ROOT / "docs" / "memory.md").read_text().strip() in whole


OLD_NAMES = {
    "migrating/caffe2.html": """
        recurrent_net LSTM MILSTM LayerNormLSTM GRU BasicRNN MultiRNNCell DropoutCell LSTMWithAttention AttentionCell
        AttentionType.Regular AttentionType.Recurrent AttentionType.Dot AttentionType.SoftCoverage
        weighted_encoder_outputs memory_optimization attention_memory_optimization cudnn_LSTM InitFromLSTMParams
        GetLSTMParamNames return_params forget_bias drop_states scope outputs_with_grads timestep
        recompute_blobs_on_backward forward_only static_rnn_unroll_size scratch_sizes retrieve_step_blobs
        PackRNNSequence UnpackRNNSequence ReversePackedSegs i2h_w gates_t_w
        Do If While CreateScope HasScope add_if_op add_while_op WhileNet IfNet BeamSearchForwardOnly post_eos_penalty
    """,
    "migrating/dl4j.html": """
        GravesLSTM LSTM SimpleRnn rnnTimeStep rnnClearPreviousState rnnGetPreviousState tBPTT tbpttFwdLength
        tbpttBackLength LastTimeStep MaskZeroLayer MaskLayer CacheMode dropconnect useDropConnect dropOut Bidirectional
        GravesBidirectionalLSTM getMemoryReport LayerMemoryReport forgetGateBiasInit gateActivationFunction HARDSIGMOID
        ReverseTimeSeriesVertex DuplicateToTimeSeriesVertex TimeDistributed RecurrentAttentionLayer
    """,
}


@pytest.mark.parametrize("page", OLD_NAMES)
def test_a_search_for_an_old_name_finds_its_page(site, page):
    """The search splits at tags, spaces and hyphens, and matches the beginnings of words."""
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    text = " ".join(f"{entry['title']} {entry['text']}" for entry in index if entry["location"].startswith(page))
    words = re.split(r"<[^>]*>|[\s\-]+", text.lower())
    missing = [name for name in OLD_NAMES[page].split() if not any(word.startswith(name.lower()) for word in words)]
    assert not missing


def test_the_search_needs_no_server(site):
    """A page opened from disk may not fetch: it loads the index and the search's worker as scripts."""
    index = (site / "search" / "search_index.json").read_text()
    assert (site / "search" / "search_index.js").read_text() == f"var __index = {index}"
    for page in site.rglob("*.html"):
        (script,) = re.findall(r'<script src="([^"]*iframe-worker[^"]*)"', page.read_text())
        base = site if script.startswith("/") else page.parent  # 404.html may be shown for any address
        assert (base / script.lstrip("/")).is_file(), page.name


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("page", ["index.html", "migrating/torch.html"])
def test_a_page_opened_from_disk_searches(site, page, tmp_path):
    switches = [
        "headless",
        "no-sandbox",
        "disable-gpu",
        "virtual-time-budget=20000",
        "host-resolver-rules=MAP * ~NOTFOUND",
    ]
    shown = subprocess.run(
        [
            *("chromium", *(f"--{switch}" for switch in switches), f"--user-data-dir={tmp_path}", "--dump-dom"),
            f"file://{site}/{page}?q=GravesLSTM",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    links = re.findall(r'<a href="([^"]*)" class="md-search-result__link"', shown)
    assert any("migrating/dl4j.html" in link for link in links), links


def test_no_page_loads_anything_from_another_server(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not re.search(r'<(script|img|link|iframe)\b[^>]*(src|href)="(https?:)?//', page.read_text()), page.name


def test_every_page_says_which_version_it_describes(site):
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    (newest,) = re.findall(r"^PYTHONS .*?jax~=(\d+\.\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in ("index.html", "reference/graph.html"):
        assert f"rnnscan {version}, last tested with jax {newest}" in (site / page).read_text()


def test_a_site_of_several_versions_lets_a_reader_choose_and_one_on_disk_asks_no_server(monkeypatch):
    specification = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hooks)
    config = types.SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml"), extra={}, copyright=None)
    monkeypatch.delenv("MIKE_DOCS_VERSION", raising=False)
    assert "version" not in hooks.on_config(config).extra
    monkeypatch.setenv("MIKE_DOCS_VERSION", "{}")
    assert hooks.on_config(config).extra["version"] == {"provider": "mike"}


def test_the_citation_names_the_version():
    (project,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"\nversion: {project}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_page_describes_itself(site):
    described = {}
    for page in site.rglob("*.html"):
        if page.name != "404.html":
            ((description),) = re.findall(r'<meta name="description" content="([^"]*)"', page.read_text())
            described[str(page.relative_to(site))] = html.unescape(description)
    assert len(set(described.values())) == len(described) > 50
    assert all(40 <= len(description) <= 250 for description in described.values()), described
    assert described["memory.html"].startswith(
        "The rule of memory: The backward pass needs values of the forward pass."
    )
    assert not any(re.search(r"[`*\]]|\[|Measured with", description) for description in described.values())


def test_the_home_page_installs_and_leads_to_the_reference(site):
    text = (site / "index.html").read_text()
    assert "pip install ." in re.sub(r"<[^>]+>", "", text)
    assert re.search(r'<a href="reference/scan.html">', text)
    assert re.search(r'<a href="changelog.html">', text)


def test_the_changelog_is_a_page(site):
    text = (site / "changelog.html").read_text()
    assert "Unreleased" in text
    assert 'href="docs/' not in text


def test_every_notebook_is_a_page_with_its_outputs(site):
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
        pictures = sum("image/png" in output.get("data", {}) for output in outputs)
        text = (site / "notebooks" / f"{path.stem}.html").read_text()
        assert len(re.findall(rf'src="{path.stem}_\d+\.png"', text)) == pictures > 0
        assert len(list((site / "notebooks").glob(f"{path.stem}_*.png"))) == pictures


def test_the_reference_shows_signatures_arguments_and_examples(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "scan.html").read_text())
    assert 'padding: Padding = "zero"' in text.replace("&#34;", '"')
    assert "the carry before the first step." in text
    assert "rnnscan as rs" in text
    assert "Example:" not in text
