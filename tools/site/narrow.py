"""Pages that can be read on a phone: names break where they have parts, and wide drawings scroll."""

from __future__ import annotations

import re

_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_CODE = re.compile(r"(<code>)([^<]*)(</code>)")
# Behind a dot, an underscore or another sign between the parts of a name, but not at the end of the name.
_PLACE = re.compile(r"(?<=[._/,=(|])(?=\w)|(?<=\w-)(?=\w)")
_DRAWING = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)


def for_narrow_screens(html: str) -> str:
    """The content of a page, with places at which a browser may break code in tables, and a frame around drawings."""
    broken = _CELL.sub(lambda cell: _CODE.sub(_with_places, cell[0]), html)
    return _DRAWING.sub(r'<div class="wide">\g<0></div>', broken)


def _with_places(code: re.Match[str]) -> str:
    start, text, end = code.groups()
    return f"{start}{_PLACE.sub('<wbr>', text)}{end}"
