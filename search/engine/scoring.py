"""SCALAR's score in SQL, for PostgreSQL with pgvector: as one function for any table, and as the list of a query.

The function takes the products of a row, whatever table they are from. A list is scanned: there each product, weight
and norm is a column of a subquery that is not pulled up (OFFSET 0), as an expression would be computed wherever it is
named, thirty times for three modalities. `exp` and products that underflow are errors: exponents end at -200.

Shapes: M modalities.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modeling_scalar.scores_scalar import ScoreOptions

FUNCTION = """\
-- SCALAR's score of a clip for a query. Arrays are in the order of the modalities:
--   products  inner products of the query with the clip's vectors, which have unit norm; NULL for what it lacks
--   gram      inner products of these vectors with each other, by rows as far as the diagonal: 11, 21, 22, 31, 32, 33
--   temperature  'Infinity' for equal weights
--   scales, offsets  of the products; by default 1 and 0
--   terms     NULL for what is weighed in the centroid; a number is added, times the product, to the score
-- NULL for a clip that has nothing.
CREATE OR REPLACE FUNCTION scalar_score(
    products float8[], gram float8[], temperature float8 DEFAULT 0.1,
    scales float8[] DEFAULT NULL, offsets float8[] DEFAULT NULL, terms float8[] DEFAULT NULL
) RETURNS float8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    cosines float8[]; weights float8[]; weight float8; highest float8; added float8;
    total float8 := 0; numerator float8 := 0; squared float8 := 0;
BEGIN
    FOR m IN 1..cardinality(products) LOOP
        cosines[m] := products[m] * coalesce(scales[m], 1) + coalesce(offsets[m], 0);
        CONTINUE WHEN cosines[m] IS NULL;
        added := coalesce(added, 0) + coalesce(terms[m], 0) * cosines[m];
        IF terms[m] IS NULL THEN
            highest := greatest(highest, cosines[m]);
        END IF;
    END LOOP;
    FOR m IN 1..cardinality(products) LOOP
        CONTINUE WHEN cosines[m] IS NULL OR terms[m] IS NOT NULL;
        weight := exp(greatest((cosines[m] - highest) / temperature, -200));
        FOR n IN 1..m - 1 LOOP
            IF weights[n] IS NOT NULL THEN
                squared := squared + 2 * weight * weights[n] * gram[m * (m - 1) / 2 + n];
            END IF;
        END LOOP;
        squared := squared + weight * weight * gram[m * (m + 1) / 2];
        weights[m] := weight;
        total := total + weight;
        numerator := numerator + weight * cosines[m];
    END LOOP;
    IF total > 0 THEN
        added := added + numerator / greatest(sqrt(greatest(squared, 0)), 0.001 * total);
    END IF;
    RETURN added;
END $$;
"""

_EPSILON = 2.0**-24
_MORE = 1e-9  # more than what float64 leaves open of a score


def _float(value: float) -> str:
    return f"'{float(value)!r}'::float8"


def _sum(terms: Sequence[str]) -> str:
    return " + ".join(terms) or "0"


def bounded(
    source: str,
    products: Sequence[str],
    places: Sequence[int],
    options: "ScoreOptions",
    min_norm: float,
    dim: int,
    above: str | None = None,
) -> str:
    """
    A query for the `number` of each clip, and between which numbers its score is: `least` and `bound`.

    Products of D dimensions that are added in float32, in whatever order, miss by d = (D + 16) 2^-24 at most. Then a
    weight that is not the largest, and the true one, are at most exp((a_m - max a + 2 d) / tau), and their quotient at
    most exp(2 d / tau): all weights together miss by v = 2 min(1, sum of these) min(1, exp(2 d / tau) - 1). For this a
    temperature below 2 d is as good as 2 d. The numerator misses by d + v (spread / 2), the norm by v.

    Args:
        source (`str`): what stands behind FROM and WHERE, with the columns `_gram` and `_reach`.
        products (`list[str]`): SQL of the inner product with each modality that is looked at, NULL where it is absent.
        places (`list[int]`): which modality of the gallery each is.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.
        min_norm (`float`), dim (`int`): the clamp of norms, and D.
        above (`str`, *optional*): SQL of a number below which a score does not matter. Clips are left out that cannot
            have it: a score is at most max a by the norm of the shortest centroid, or 0.99 max a if that is below 0.
    """
    scales, offsets = (
        [fallback if values is None else float(values[place]) for place in places]
        for values, fallback in ((options.modality_scale, 1.0), (options.modality_offset, 0.0))
    )
    miss = (dim + 16) * _EPSILON * max(scales) + _MORE
    temperature = max(float(options.query_temperature), 2 * miss)
    factor = math.exp(2 * miss / temperature)
    terms = {m: float(weight) for m, weight in options.terms.items() if m in places}
    own = [m for m in places if m not in terms]  # what the centroid is of
    cosines = zip(products, scales, offsets, places, strict=True)
    named = ", ".join(f"{product} * {_float(a)} + {_float(b)} AS c{m}" for product, a, b, m in cosines)
    c = ", ".join(f"c{m}" for m in own) or "NULL::float8"
    highest, spread = f"greatest({c})", f"greatest({c}) - least({c})"
    exponent = f"greatest((c{{0}} - {highest}) / {_float(temperature)}, -200)"
    weights = [f"CASE WHEN c{m} IS NULL THEN 0 ELSE exp({exponent.format(m)}) END AS e{m}" for m in own]
    added = _sum([f"coalesce(c{m}, 0) * {_float(weight)}" for m, weight in terms.items()])
    squares = [
        f"{1 if m == n else 2} * e{m} * e{n} * _gram[{m * (m + 1) // 2 + n + 1}]" for m in own for n in own if n <= m
    ]
    most = f"{highest} + {_float(miss)}"
    most = f"coalesce(({most}) * CASE WHEN {most} < 0 THEN 0.99 ELSE _reach END, 0)"
    least, more = _float(min_norm), _float(miss * sum(terms.values()))
    pruned = "" if above is None else f"WHERE {most} + {added} + {more} >= {above} "
    # Level by level, each from the one before it
    total, numerator = f"nullif({_sum([f'e{m}' for m in own])}, 0)", _sum([f"coalesce(e{m} * c{m}, 0)" for m in own])
    columns = (
        f"({numerator}) / {total} AS numerator, sqrt(greatest({_sum(squares)}, 0)) / {total} AS norm",
        f"{spread} AS spread, added",
        f"least(1, ({total} - 1) * {_float(factor)}) * {_float(2 * min(1.0, factor - 1))} AS v",
    )
    score = f"numerator / greatest(norm, {least})"
    missed = f"({_float(miss)} + v * (spread / 2 + 1.01 * abs(score))) / greatest({least}, norm - v)"
    rows = f"SELECT number, _gram, _reach, {named} FROM {source} OFFSET 0"
    values = ", ".join(["number, _gram", f"{added} AS added", *(f"c{m}" for m in own), *weights])
    rows = f"SELECT {values} FROM ({rows}) AS products {pruned}OFFSET 0"
    rows = f"SELECT number, {', '.join(columns)} FROM ({rows}) AS weights OFFSET 0"
    rows = f"SELECT number, norm, spread, added, v, {score} AS score FROM ({rows}) AS centroids OFFSET 0"
    score, missed = "coalesce(score, 0) + added", f"coalesce({missed}, 0) + {more}"
    rows = f"SELECT number, {score} AS score, {missed} AS missed FROM ({rows}) AS parts"
    return f"SELECT number, score - missed AS least, score + missed AS bound FROM ({rows}) AS scores"


def listed(table: str, condition: str, percent: float | None, *asked: Any) -> str:
    """
    A query for the `number` and the `bound` of the clips of the highest bounds, so many as `%(limit)s` says.

    Args:
        table (`str`), condition (`str`): which clips.
        percent (`float`, *optional*): of the table that is looked at first. Of the others those are left out, by
            their products alone, whose scores are below the scores of so many clips of this sample.
        asked: further arguments of [`bounded`].
    """
    above, best = None, "ORDER BY {} DESC LIMIT %(limit)s"
    if percent is not None:
        rows = bounded(f"{table} TABLESAMPLE SYSTEM ({percent!r}) WHERE {condition}", *asked)
        rows = f"SELECT least FROM ({rows}) AS sample {best.format('least')}"
        above = f"(SELECT CASE WHEN count(*) < %(limit)s THEN '-Infinity' ELSE min(least) END FROM ({rows}) AS best)"
    rows = bounded(f"{table} WHERE {condition}", *asked, above)
    return f"SELECT number::text, bound FROM ({rows}) AS bounds {best.format('bound')}"


__all__ = ["FUNCTION", "bounded", "listed"]
