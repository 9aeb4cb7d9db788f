"""SCALAR's score in SQL, for PostgreSQL with pgvector: one function for any table, and the query for a list of clips.

- The list is a scan. Each product, weight and norm is a column of a subquery with OFFSET 0, which prevents inlining:
  otherwise an expression would be computed at each use, thirty times for three modalities.
- Underflow of `exp` and of products is an error in PostgreSQL, so exponents end at -200. The function, which may be
  given any numbers, ends them at -100 and takes products below 1e-30 as 0.

Shapes: M modalities.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modeling_scalar.scores_scalar import ScoreOptions

FUNCTION = """\
-- SCALAR's score of a clip for a query. Arrays are in the order of the modalities:
--   products  inner products of the query with the clip's vectors, which have unit norm; NULL for missing modalities
--   gram      inner products of these vectors with each other: the lower triangle by rows, 11, 21, 22, 31, 32, 33,
--             or the whole square
--   temperature  above 0; 'Infinity' for equal weights
--   scales, offsets  of the products; by default 1 and 0
-- NULL for a clip without any modality. Other lengths, and a missing inner product of modalities in use, are errors.
CREATE OR REPLACE FUNCTION scalar_score(
    products float8[], gram float8[], temperature float8 DEFAULT 0.1,
    scales float8[] DEFAULT NULL, offsets float8[] DEFAULT NULL
) RETURNS float8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    number int := coalesce(cardinality(products), 0);
    is_square bool := cardinality(gram) = number * number;
    cosines float8[]; weights float8[]; product float8; highest float8;
    total float8 := 0; numerator float8 := 0; squared float8 := 0;
BEGIN
    IF cardinality(gram) NOT IN (number * (number + 1) / 2, number * number) THEN
        RAISE EXCEPTION 'gram of % modalities must have % or % numbers, got %',
            number, number * (number + 1) / 2, number * number, cardinality(gram);
    END IF;
    IF cardinality(scales) <> number OR cardinality(offsets) <> number THEN
        RAISE EXCEPTION 'scales and offsets of % modalities must each be NULL or have % numbers, got %, %',
            number, number, cardinality(scales), cardinality(offsets);
    END IF;
    IF greatest(array_ndims(products), array_ndims(scales), array_ndims(offsets)) > 1 THEN
        RAISE EXCEPTION 'only gram may have two dimensions';
    END IF;
    IF (temperature > 0 AND temperature <> 'NaN') IS NOT TRUE THEN
        RAISE EXCEPTION 'temperature must be above 0, got %', temperature;
    END IF;
    IF array_ndims(gram) > 1 THEN
        gram := ARRAY(SELECT unnest(gram));
    END IF;
    FOR m IN 1..number LOOP
        cosines[m] := products[m] * coalesce(scales[m], 1) + coalesce(offsets[m], 0);
        CONTINUE WHEN cosines[m] IS NULL;
        IF abs(cosines[m]) < 1e-30 THEN
            cosines[m] := 0;
        END IF;
        highest := greatest(highest, cosines[m]);
    END LOOP;
    FOR m IN 1..number LOOP
        CONTINUE WHEN cosines[m] IS NULL;
        weights[m] := exp(greatest((cosines[m] - highest) / least(greatest(temperature, 1e-38), 1e38), -100));
        FOR n IN 1..m LOOP
            CONTINUE WHEN weights[n] IS NULL;
            product := gram[CASE WHEN is_square THEN (m - 1) * number ELSE m * (m - 1) / 2 END + n];
            IF product IS NULL THEN
                RAISE EXCEPTION 'gram has no inner product of modalities % and %, which are both there', m, n;
            END IF;
            IF abs(product) > 1e-30 THEN
                squared := squared + CASE WHEN n < m THEN 2 ELSE 1 END * weights[m] * weights[n] * product;
            END IF;
        END LOOP;
        total := total + weights[m];
        numerator := numerator + weights[m] * cosines[m];
    END LOOP;
    IF total > 0 THEN
        RETURN numerator / greatest(sqrt(greatest(squared, 0)), 0.001 * total);
    END IF;
    RETURN NULL;
END $$;
"""

_EPSILON = 2.0**-24
_MORE = 1e-9  # more than the float64 rounding error of a score


def _float(value: float) -> str:
    return f"'{float(value)!r}'::float8"


def _sum(parts: Sequence[str]) -> str:
    return " + ".join(parts)


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
    Make a query for the `number` of each clip and the interval of its score: `least` and `bound`.

    An inner product of D dimensions, summed in float32 in any order, has an error of at most d = (D + 16) 2^-24. A
    weight other than the largest, computed or true, is then at most exp((a_m - max a + 2 d) / tau), and their ratio at
    most exp(2 d / tau): the error of all weights together is v = 2 min(1, sum of these) min(1, exp(2 d / tau) - 1). A
    temperature below 2 d is treated as 2 d here. The error of the numerator is d + v (spread / 2), of the norm v.

    Args:
        source (`str`): the SQL after FROM, including WHERE, with the columns `_gram` and `_reach`.
        products (`list[str]`): SQL of the inner product with each modality in use, NULL where it is absent.
        places (`list[int]`): the index of each of these modalities in the gallery.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.
        min_norm (`float`), dim (`int`): the minimum of norms, and D.
        above (`str`, *optional*): SQL of a number; clips whose score is certainly below it are left out. A score is at
            most max a / (the norm of the shortest centroid), or 0.99 max a if that is negative.
    """
    scales, offsets = (
        [fallback if values is None else float(values[place]) for place in places]
        for values, fallback in ((options.modality_scale, 1.0), (options.modality_offset, 0.0))
    )
    miss = (dim + 16) * _EPSILON * max(scales) + _MORE
    temperature = max(float(options.query_temperature), 2 * miss)
    factor = math.exp(2 * miss / temperature)
    cosines = zip(products, scales, offsets, places, strict=True)
    named = ", ".join(f"{product} * {_float(a)} + {_float(b)} AS c{m}" for product, a, b, m in cosines)
    c = ", ".join(f"c{m}" for m in places)
    highest, spread = f"greatest({c})", f"greatest({c}) - least({c})"
    exponent = f"greatest((c{{0}} - {highest}) / {_float(temperature)}, -200)"
    weights = [f"CASE WHEN c{m} IS NULL THEN 0 ELSE exp({exponent.format(m)}) END AS e{m}" for m in places]
    squares = [
        f"{1 if m == n else 2} * e{m} * e{n} * _gram[{m * (m + 1) // 2 + n + 1}]"
        for m in places
        for n in places
        if n <= m
    ]
    most = f"{highest} + {_float(miss)}"
    most = f"coalesce(({most}) * CASE WHEN {most} < 0 THEN 0.99 ELSE _reach END, 0)"
    least = _float(min_norm)
    pruned = "" if above is None else f"WHERE {most} >= {above} "
    # Nested subqueries, each built on the one before
    total = f"nullif({_sum([f'e{m}' for m in places])}, 0)"
    numerator = _sum([f"coalesce(e{m} * c{m}, 0)" for m in places])
    columns = (
        f"({numerator}) / {total} AS numerator, sqrt(greatest({_sum(squares)}, 0)) / {total} AS norm",
        f"{spread} AS spread",
        f"least(1, ({total} - 1) * {_float(factor)}) * {_float(2 * min(1.0, factor - 1))} AS v",
    )
    score = f"numerator / greatest(norm, {least})"
    missed = f"({_float(miss)} + v * (spread / 2 + 1.01 * abs(score))) / greatest({least}, norm - v)"
    rows = f"SELECT number, _gram, _reach, {named} FROM {source} OFFSET 0"
    values = ", ".join(["number, _gram", *(f"c{m}" for m in places), *weights])
    rows = f"SELECT {values} FROM ({rows}) AS products {pruned}OFFSET 0"
    rows = f"SELECT number, {', '.join(columns)} FROM ({rows}) AS weights OFFSET 0"
    rows = f"SELECT number, norm, spread, v, {score} AS score FROM ({rows}) AS centroids OFFSET 0"
    rows = f"SELECT number, coalesce(score, 0) AS score, coalesce({missed}, 0) AS missed FROM ({rows}) AS parts"
    return f"SELECT number, score - missed AS least, score + missed AS bound FROM ({rows}) AS scores"


def listed(table: str, condition: str, percent: float | None, *asked: Any) -> str:
    """
    Make a query for the `number` and `bound` of the `%(limit)s` clips with the highest bounds.

    Args:
        table (`str`), condition (`str`): which clips.
        percent (`float`, *optional*): size of a sample of the table that is scored first. Other clips are left out, by
            their products alone, if `%(limit)s` clips of the sample have higher scores.
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
