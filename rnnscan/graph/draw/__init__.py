"""Pictures of graphs: a diagram of boxes and arrows, its layout, and writers of SVG, Mermaid and DOT."""

from rnnscan.graph.draw.picture import Picture as Picture
