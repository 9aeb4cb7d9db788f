"""Text of others stays text."""

import re

from scalar_retrieval.hub_cards.markdown import Markdown, code, table, text

HOSTILE = "a|b\n# c <script>`x`</script> [l](http://e.org) **d** $e$ \\ ---\r\x00"


def test_foreign_text_stays_text():
    escaped = text(HOSTILE)
    assert "\n" not in escaped and "\r" not in escaped and "\x00" not in escaped
    assert not set("<>") & set(escaped)
    assert not set("`*[]$\\") & set(re.sub(r"\\.", "", escaped))
    assert text(escaped) == escaped and isinstance(escaped, Markdown)


def test_a_code_span_ends_where_it_should():
    assert code("plain_name") == "`plain_name`"
    assert code("a`b") == "``a`b``"
    assert code("`a\nb`") == "`` `a b` ``"
    assert code("") == "`  `"


def test_a_table_has_as_many_cells_as_columns():
    written = table(["a", "b"], [[HOSTILE, None], [code("x|y"), 3]]).splitlines()
    assert len(written) == 4
    assert written[1] == "| --- | --- |"
    for line in written:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert written[3] == "| `x\\|y` | 3 |"
