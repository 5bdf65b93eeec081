"""Pictures of graphs show every operation and value once, in the colors of their kinds, in every format."""

import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from contextlib import nullcontext
from html import unescape

import jax
import jax.numpy as jnp
import pytest
from pygraphviz import AGraph

import rnnscan as rs
from rnnscan import cells
from rnnscan._util.messages import describe
from rnnscan.graph.draw import Picture
from rnnscan.graph.draw.colors import END, KINDS, LINES, NEUTRAL
from rnnscan.graph.draw.graphviz import rendered
from svg_parts import SVG, border, extent, parts, tooltip


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.

NASTY = 'a<b & "c" | {d}\\n #e; \x00 é'


def graph_of(cell):
    x = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    return rs.graph.trace(cell, params, jax.eval_shape(cell.initial_carry, x), x)


def deep(depth, *, scoped):
    """A function of 4 operations a layer, and 1."""

    def function(scales, x):
        for index, scale in enumerate(scales):
            with jax.named_scope(f"layer_{index}") if scoped else nullcontext():
                with jax.named_scope("inner") if scoped else nullcontext():
                    new = jnp.sin(x) * scale
                x = jnp.tanh(new) + x
        return -x

    return rs.graph.trace(function, [1.0] * depth, 2.0)


@pytest.fixture(scope="module")
def lstm():
    return graph_of(cells.LSTM(4))


@pytest.mark.parametrize("direction", ["down", "right"])
def test_every_operation_argument_result_and_value_is_drawn_once(lstm, direction):
    boxes, arrows = parts(lstm.draw(direction=direction).text)
    assert {*boxes} == (
        {f"n{node.id}" for node in lstm.nodes}
        | {f"a{index}" for index in range(len(lstm.inputs))}
        | {f"r{index}" for index in range(len(lstm.outputs))}
    )
    source = {name: f"a{index}" for index, name in enumerate(lstm.inputs)}
    source |= {name: f"n{node}" for name, (node, _) in lstm.producers().items()}
    wanted = Counter(
        (source[name], f"n{node.id}")
        for node in lstm.nodes
        for name in dict.fromkeys(node.inputs)
        if isinstance(name, rs.graph.Name)
    )
    wanted += Counter((source[name], f"r{index}") for index, name in enumerate(lstm.outputs.values()))
    assert Counter((source, target) for source, target, _ in arrows) == wanted


def test_boxes_have_the_colors_of_their_kinds_and_types_as_tooltips(lstm):
    boxes, _ = parts(lstm.draw().text)
    kinds = rs.graph.status_of_work(lstm)
    for node in lstm.nodes:
        box = boxes[f"n{node.id}"]
        assert border(box).get("fill") == KINDS[kinds[node.outputs[0]]].fill
        assert box.get("class") == f"node {kinds[node.outputs[0]]}"
        assert f"{node.outputs[0]}: {describe(lstm.type_of(node.outputs[0]))}" in tooltip(box)
    assert {border(box).get("fill") for name, box in boxes.items() if name[0] in "ar"} == {END.fill}


def test_thick_arrows_are_the_values_that_the_rule_of_memory_keeps(lstm):
    memory = rs.Memory(recompute=("gates",))
    for choice in (None, memory):
        _, arrows = parts(lstm.draw(memory=choice).text)
        statuses = {str(name): kept for name, kept in rs.graph.status_of_memory(lstm, choice or rs.Memory()).items()}
        for _, _, arrow in arrows:
            name = tooltip(arrow).partition(":")[0]
            wide = float(arrow.find(f".//{SVG}path").get("stroke-width")) > 2
            is_parameter = rs.graph.status_of_work(lstm)[lstm.names[lstm.value(name)]] == "invariant"
            assert wide == (statuses[name] == "kept" and not is_parameter)


def test_any_other_function_has_one_color_and_plain_arrows():
    boxes, arrows = parts(deep(2, scoped=False).draw().text)
    fills = {border(box).get("fill") for name, box in boxes.items() if name[0] == "n"}
    assert fills == {NEUTRAL.fill}
    assert {arrow.get("class").strip() for _, _, arrow in arrows} == {"edge"}
    with pytest.raises(ValueError, match="only the graph of a cell"):
        deep(2, scoped=False).draw(memory=rs.Memory())


def test_text_stays_within_its_box(lstm):
    from matplotlib.font_manager import findSystemFonts
    from matplotlib.ft2font import FT2Font, LoadFlags

    fonts = [path for path in findSystemFonts() if path.endswith("DejaVuSans.ttf")]
    if not fonts:
        pytest.skip("Graphviz measures another font where DejaVu Sans is not installed.")
    font = FT2Font(fonts[0])
    for box in parts(lstm.draw().text)[0].values():
        left, _, right, _ = extent(box)
        for text in box.iter(f"{SVG}text"):
            if text.get("font-weight") != "bold":
                font.set_size(float(text.get("font-size")), 72)
                font.set_text(text.text, flags=LoadFlags.NO_HINTING)
                start = float(text.get("x"))
                assert left < start
                assert start + font.get_width_height()[0] / 64 < right


def test_without_details_moves_are_left_out_and_parameters_written_into_their_readers(lstm):
    diagram = lstm.draw(details=False).diagram
    assert not any(box.only_moves for box in diagram.boxes)
    assert [box.text for box in diagram.boxes if box.role == "argument"] == ["carry[0]", "carry[1]", "x"]
    products = {box.notes for box in diagram.boxes if box.text == "@"}
    assert products == {("kernel",), ("recurrent_kernel",)}
    (gates,) = (box for box in diagram.boxes if any("gates" in note for note in box.notes))
    assert gates.notes == ("bias", "gates, 128 B")
    assert {arrow.keeping for arrow in diagram.arrows if arrow.source == gates.id} == {"kept"}


@pytest.mark.parametrize(
    ("scoped", "collapse", "groups"),
    [(True, 1, 60), (True, 2, 60), (True, None, 60), (False, None, 40), (False, False, 0), (False, 1, 40)],
)
def test_collapsing_is_a_partition_into_neighbors(scoped, collapse, groups):
    graph = deep(60, scoped=scoped)
    assert len(graph.nodes) == 241
    diagram = graph.draw("dot", collapse=collapse).diagram
    found = [box for box in diagram.boxes if box.role == "group"]
    members = [member for box in found for member in box.members]
    alone = [box.id for box in diagram.boxes if box.role == "operation"]
    assert len(found) == groups
    assert sorted([*members, *alone]) == sorted(f"n{node.id}" for node in graph.nodes)
    place = {box.id: index for index, box in enumerate(diagram.boxes)}
    assert all(place[arrow.source] < place[arrow.target] for arrow in diagram.arrows)
    of = {member: box.id for box in diagram.boxes for member in (box.members or (box.id,))}
    whole = graph.draw("dot", collapse=False).diagram
    between = {(of[arrow.source], of[arrow.target]) for arrow in whole.arrows}
    assert {(arrow.source, arrow.target) for arrow in diagram.arrows} == {(a, b) for a, b in between if a != b}
    if scoped and collapse == 1:
        assert (found[3].text, found[3].notes[0]) == ("layer_3", "4 operations")


def test_scopes_of_calls_within_calls_are_found():
    @jax.jit
    def called(x):
        with jax.named_scope("within"):
            return jnp.sin(x)

    def function(x):
        with jax.named_scope("around"):
            return called(x) + called(x)

    diagram = rs.graph.trace(jax.grad(function), 1.0).draw("dot", collapse=False).diagram
    scopes = {box.scope for box in diagram.boxes if box.text in ("sin", "cos")}
    assert scopes == {("jvp(around)", "within")}


def nasty_graph():
    def function(x):
        with jax.named_scope('s<c> & "o'):
            y = jnp.sin(rs.name(jnp.cos(x), NASTY)) * 2
        return {NASTY: y, "plain": jnp.nan}

    return rs.graph.trace(function, 1.0)


@pytest.mark.parametrize("collapse", [None, 1])
def test_names_with_any_characters_are_escaped(collapse):
    picture = nasty_graph().draw(title=NASTY, collapse=collapse)
    root = ET.fromstring(picture.text)
    shown = NASTY.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert (root.get("role"), root.get("aria-label")) == ("img", shown)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert shown in texts
    assert collapse == 1 or any(shown in text for text in texts[1:])

    dot = nasty_graph().draw("dot", title=NASTY, collapse=collapse).text
    strings = r'"(?:[^"\\]|\\.)*"'
    markup = r"(?<==)<.*>(?= tooltip=| labelloc=)"
    plain = re.sub(strings, "", re.sub(markup, "", dot))
    assert '"' not in plain
    assert "<" not in plain
    assert any(shown in unescape(text).replace('\\"', '"').replace("\\\\", "\\") for text in re.findall(strings, dot))
    labels = ["".join(ET.fromstring(f"<a>{text[1:-1]}</a>").itertext()) for text in re.findall(markup, dot)]
    assert shown in labels
    assert len(labels) == 1 + dot.count("penwidth=1]") + dot.count("penwidth=2]")

    for line in nasty_graph().draw("mermaid", collapse=collapse).text.splitlines()[1:-1]:
        statement = re.fullmatch(
            r' {4}(\w+(\["[^"]*"\]|\(\["[^"]*"\]\)|\[\["[^"]*"\]\]):::\w+|\w+ (-->|==>|-\.->) \w+|classDef \w+ \S+)',
            line,
        )
        assert statement, line
        assert not re.search(r"[<>&|{}`]", line.replace("-->", "").replace("<br/>", "").replace("==>", ""))


def test_dot_is_a_graph_of_the_same_nodes_and_edges_to_graphviz(lstm):
    picture = lstm.draw("dot", direction="right")
    graph = AGraph(string=picture.text)
    assert graph.graph_attr["rankdir"] == "LR"
    assert graph.nodes() == [box.id for box in picture.diagram.boxes]
    assert sorted(graph.edges()) == sorted((arrow.source, arrow.target) for arrow in picture.diagram.arrows)
    for box in picture.diagram.boxes:
        assert graph.get_node(box.id).attr["tooltip"] == box.tooltip.replace("\n", "\\n")


def test_a_picture_is_the_same_in_every_run(lstm):
    for format in ("svg", "mermaid", "dot"):
        assert lstm.draw(format).text == graph_of(cells.LSTM(4)).draw(format).text


def test_saving_and_showing(lstm, tmp_path):
    picture = lstm.draw(title="LSTM")
    assert isinstance(picture, Picture)
    picture.save(tmp_path / "new" / "lstm.svg")
    assert (tmp_path / "new" / "lstm.svg").read_text(encoding="utf-8") == picture.text == picture._repr_svg_()
    assert picture.text in picture._repr_html_()
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".JPG", b"\xff\xd8")):
        picture.save(tmp_path / f"lstm{ending}")
        assert (tmp_path / f"lstm{ending}").read_bytes().startswith(start)
    dot = lstm.draw("dot")
    dot.save(str(tmp_path / "lstm.gv"))
    assert (tmp_path / "lstm.gv").read_text() == dot.text == str(dot)
    assert dot._repr_svg_() is dot._repr_html_() is None
    with pytest.raises(ValueError, match=r"must be one of \.dot, \.gv for the format 'dot'; got .*lstm\.svg"):
        dot.save(tmp_path / "lstm.svg")
    with pytest.raises(ValueError, match="ending must be one of"):
        picture.save(tmp_path / "lstm.xyz")


def test_without_graphviz_the_error_says_what_to_install(lstm, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "rnnscan.graph.draw.graphviz", raising=False)
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    message = (
        r"draw: the extra 'plot' must be installed; got no module 'pygraphviz'. Install it .* or draw as \"mermaid\""
    )
    with pytest.raises(ImportError, match=message):
        lstm.draw().text  # noqa: B018
    with pytest.raises(ImportError, match=message):
        lstm.draw().save(tmp_path / "new" / "lstm.svg")
    assert [*tmp_path.iterdir()] == []
    for format in ("mermaid", "dot"):
        assert lstm.draw(format).text


def test_an_error_of_graphviz_is_shown_with_its_message_and_its_warnings_are_not(lstm, capfd):
    with pytest.raises(RuntimeError, match=r"as 'nothing'; got exit status 1 and .*\"nothing\" not recognized"):
        rendered(lstm.draw("dot").text, "nothing")
    assert lstm.draw().text
    assert capfd.readouterr() == ("", "")


def test_the_legend_has_the_kinds_and_lines_of_the_picture(lstm):
    texts = [text.text for text in ET.fromstring(lstm.draw(details=False).text).iter(f"{SVG}text")]
    kinds = [text for text in texts if text in {color.meaning for color in KINDS.values()}]
    assert kinds == [KINDS[kind].meaning for kind in ("parallel", "recurrent")]
    assert [text for text in texts if text in {line.meaning for line in LINES.values()}] == [
        LINES["kept"].meaning,
        LINES["recomputed"].meaning,
    ]


def test_the_lines_of_the_legend_are_in_one_column():
    """Also where there are more lines than kinds: here two kinds, and three lines."""
    cell, xs = cells.LSTM(4), jax.ShapeDtypeStruct((32, 2, 3), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    explanation = rs.explain(cell, params, cell.initial_carry(jnp.ones((2, 3))), xs)
    places = {text.text: text.get("x") for text in ET.fromstring(explanation.draw().text).iter(f"{SVG}text")}
    columns = [
        {places[one.meaning] for one in every if one.meaning in places} for every in (KINDS.values(), LINES.values())
    ]
    assert [len(column) for column in columns] == [1, 1]
    assert columns[0] != columns[1]
    assert len(LINES.keys() & {line for line in LINES if LINES[line].meaning in places}) == 3


def test_graphs_without_operations_or_arguments_are_drawn():
    assert "result" in rs.graph.trace(lambda: 3.0).draw().text
    boxes, arrows = parts(rs.graph.trace(lambda x, y: (y, y), 1.0, 2.0).draw().text)
    assert ([*boxes], len(arrows)) == (["a0", "a1", "r0", "r1"], 2)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "svgg"}, ValueError, "must be one of 'svg', 'mermaid', 'dot'; got 'svgg'. Did you mean 'svg'"),
        ({"direction": "left"}, ValueError, "`direction` must be one of 'down', 'right'; got 'left'"),
        ({"collapse": "a"}, TypeError, "`collapse` must be a number of enclosing scopes"),
        ({"collapse": 0}, ValueError, "`collapse` must be at least 1; got 0"),
        ({"title": None}, TypeError, "`title` must be text; got None"),
        ({"memory": ()}, TypeError, "`memory` must be a Memory; got tuple"),
        ({"memory": rs.Memory(recompute=("gate",))}, ValueError, "got 'gate'. Did you mean 'gates'?"),
    ],
)
def test_bad_options_are_errors(lstm, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        lstm.draw(**options)
