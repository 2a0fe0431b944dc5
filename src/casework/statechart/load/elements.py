"""An XML document as elements that know their line, which ElementTree's own parser forgets."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from casework.errors import InvalidMachine

NAMESPACE = "http://www.w3.org/2005/07/scxml"
MAX_DEPTH = 200
"""Elements inside each other; a chart has no use for more, and the tree is walked by recursion."""

Lines = dict[Element, int]


def parse_xml(text: str, source: str) -> tuple[Element, Lines]:
    """The root, and the line on which each element begins. Raises InvalidMachine for what is no XML of this kind."""
    parser = expat.ParserCreate("utf-8", "}")
    builder = TreeBuilder()
    lines: Lines = {}
    depth = 0

    def name(given: str) -> str:
        return f"{{{given}" if "}" in given else given

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            where = f"{source}:{parser.CurrentLineNumber}"
            raise InvalidMachine([f"{where}: more than {MAX_DEPTH} elements inside each other"])
        element = builder.start(name(tag), {name(key): value for key, value in attributes.items()})
        lines[element] = parser.CurrentLineNumber

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name(tag))

    def refuse(*_: object) -> None:
        where = f"{source}:{parser.CurrentLineNumber}"
        raise InvalidMachine([f"{where}: a document type is not supported (remove <!DOCTYPE ...>)"])

    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    # What comes in is text already, so that what the document says of its encoding no longer counts.
    try:
        parser.Parse(text.lstrip("\ufeff \r\n\t").encode(), True)
    except (expat.ExpatError, ValueError) as error:
        line = getattr(error, "lineno", 0)
        raise InvalidMachine([f"{source}:{f'{line}:' if line else ''} not XML: {error}"]) from None
    return builder.close(), lines


def tag_of(element: Element) -> str:
    """The name of an element of SCXML; others keep their namespace."""
    return str(element.tag).removeprefix(f"{{{NAMESPACE}}}")


def own(element: Element) -> Iterator[Element]:
    """All elements below, those of documents within not among them."""
    for child in element:
        if tag_of(child) != "scxml":
            yield child
            yield from own(child)
