"""Pictures of graphs: a diagram of boxes and arrows, written in Mermaid and DOT, which Graphviz draws."""

from rnnscan.graph.draw.picture import Picture as Picture
