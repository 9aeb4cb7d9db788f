-- SCALAR's score and the list of the best, for any table. Vectors need unit norm.
-- Their search path is fixed, so that no function or operator of another role is called.

-- The score of a clip for a query. Arrays are in the order of the modalities:
--   products  inner products of the query with the clip's vectors; NULL for modalities that the clip lacks
--   gram      inner products of these vectors with each other: the lower triangle by rows, 11, 21, 22, 31, 32, 33,
--             or the whole square
--   query_temperature  above 0; 'Infinity' for equal weights
--   scales, offsets  of the products; by default 1 and 0
--   error     by how much products may be wrong; above 0, the result is not the score but an upper bound of it
-- NULL for a clip without any modality. Other lengths, and a missing inner product of modalities in use, are errors.
CREATE OR REPLACE FUNCTION scalar.scalar_score(
    products float8[], gram float8[], query_temperature float8 DEFAULT 0.1,
    scales float8[] DEFAULT NULL, offsets float8[] DEFAULT NULL, error float8 DEFAULT 0
) RETURNS float8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number int := coalesce(cardinality(products), 0);
    is_triangle bool := coalesce(cardinality(gram) = number * (number + 1) / 2, false);
    tau float8 := least(greatest(query_temperature, 2 * error, 1e-38), 1e38);
    cosines float8[]; weights float8[]; a float8; b float8; c float8;
    highest float8; lowest float8; total float8; numerator float8; squared float8; product float8;
    score float8; norm float8; factor float8; misweighed float8;
BEGIN
    IF NOT is_triangle AND (cardinality(gram) = number * number) IS NOT TRUE THEN
        RAISE EXCEPTION 'gram of % modalities must have % or % numbers, got %',
            number, number * (number + 1) / 2, number * number, cardinality(gram);
    END IF;
    IF cardinality(scales) <> number OR cardinality(offsets) <> number THEN
        RAISE EXCEPTION 'scales and offsets of % modalities must each be NULL or have % numbers, got %, %',
            number, number, cardinality(scales), cardinality(offsets);
    END IF;
    IF (query_temperature > 0 AND query_temperature <> 'NaN') IS NOT TRUE THEN
        RAISE EXCEPTION 'query_temperature must be above 0, got %', query_temperature;
    END IF;
    -- Up to three modalities are written out, which takes a third of the time. Exponents end at -100, because
    -- underflow is an error in PostgreSQL.
    IF number <= 3 AND is_triangle AND scales IS NULL AND offsets IS NULL AND array_ndims(products) = 1 THEN
        highest := greatest(products[1], products[2], products[3]);
        lowest := least(products[1], products[2], products[3]);
        a := CASE WHEN products[1] IS NULL THEN 0 ELSE exp(greatest((products[1] - highest) / tau, -100)) END;
        b := CASE WHEN products[2] IS NULL THEN 0 ELSE exp(greatest((products[2] - highest) / tau, -100)) END;
        c := CASE WHEN products[3] IS NULL THEN 0 ELSE exp(greatest((products[3] - highest) / tau, -100)) END;
        total := a + b + c;
        numerator := a * coalesce(products[1], 0) + b * coalesce(products[2], 0) + c * coalesce(products[3], 0);
        squared := a * a * gram[1] + CASE WHEN b = 0 THEN 0 ELSE b * (b * gram[3] + 2 * a * gram[2]) END
            + CASE WHEN c = 0 THEN 0 ELSE c * (c * gram[6] + 2 * a * gram[4] + 2 * b * gram[5]) END;
    END IF;
    IF squared IS NULL THEN
        IF greatest(array_ndims(products), array_ndims(scales), array_ndims(offsets)) > 1 THEN
            RAISE EXCEPTION 'only gram may have two dimensions';
        END IF;
        IF array_ndims(gram) > 1 THEN
            gram := ARRAY(SELECT unnest(gram));
        END IF;
        highest := NULL;
        lowest := NULL;
        total := 0;
        numerator := 0;
        squared := 0;
        FOR m IN 1..number LOOP
            cosines[m] := products[m] * coalesce(scales[m], 1) + coalesce(offsets[m], 0);
            highest := greatest(highest, cosines[m]);
            lowest := least(lowest, cosines[m]);
        END LOOP;
        FOR m IN 1..number LOOP
            CONTINUE WHEN cosines[m] IS NULL;
            weights[m] := exp(greatest((cosines[m] - highest) / tau, -100));
            total := total + weights[m];
            numerator := numerator + weights[m] * cosines[m];
            FOR n IN 1..m LOOP
                CONTINUE WHEN weights[n] IS NULL;
                product := gram[CASE WHEN is_triangle THEN m * (m - 1) / 2 ELSE (m - 1) * number END + n];
                IF product IS NULL THEN
                    RAISE EXCEPTION 'gram has no inner product of modalities % and %, which are both there', m, n;
                END IF;
                squared := squared + CASE WHEN n < m THEN 2 ELSE 1 END * weights[m] * weights[n] * product;
            END LOOP;
        END LOOP;
    END IF;
    IF total = 0 THEN
        RETURN NULL;
    END IF;
    norm := sqrt(greatest(squared, 0)) / total;
    score := numerator / total / greatest(norm, 0.001);
    IF error = 0 THEN
        RETURN score;
    END IF;
    -- A weight other than the largest, computed or true, is at most exp((c_m - highest + 2 error) / tau), and their
    -- ratio at most exp(2 error / tau): that bounds the error of all weights together.
    factor := exp(2 * error / tau);
    misweighed := 2 * least(1, (total - 1) * factor) * least(1, factor - 1);
    RETURN score + (error + misweighed * ((highest - lowest) / 2 + 1.01 * abs(score)))
        / greatest(0.001, norm - misweighed);
END $$;

-- The k rows with the highest scores, {{score, id}, ...}, as texts. Equal scores are in the order of their ids: the
-- shorter first, and then by letters, so that whole numbers are in their own order. The state is k, a score that k rows
-- have at least, and rows as "score id", which are sorted when there are twice as many as needed.
CREATE OR REPLACE FUNCTION scalar.scalar_best_step(best text[], score float8, id anyelement, k int) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF score IS NULL OR score < best[2]::float8 THEN
        RETURN best;
    END IF;
    IF score = 'NaN' OR (k > 0) IS NOT TRUE OR id IS NULL THEN
        RAISE EXCEPTION 'expected a score, an id, and a positive k, got %, %, %', score, id, k;
    END IF;
    IF cardinality(best) = 0 THEN
        best := ARRAY[k::text, '-Infinity'];
    END IF;
    best := array_append(best, score || ' ' || id);
    IF cardinality(best) > 2 * k + 66 THEN
        SELECT ARRAY[k::text, min(value)::text] || array_agg(entry) INTO best FROM (
            SELECT entry, split_part(entry, ' ', 1)::float8 AS value FROM unnest(best[3:]) AS entry
            ORDER BY value DESC, length(entry), entry COLLATE "C" LIMIT k
        ) AS kept;
    END IF;
    RETURN best;
END $$;
CREATE OR REPLACE FUNCTION scalar.scalar_best_join(best text[], others text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN cardinality(best) = 0 THEN others WHEN cardinality(others) = 0 THEN best
        ELSE ARRAY[best[1], greatest(best[2]::float8, others[2]::float8)::text] || best[3:] || others[3:] END
$$;
CREATE OR REPLACE FUNCTION scalar.scalar_best_list(best text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(ARRAY[split_part(entry, ' ', 1), substr(entry, strpos(entry, ' ') + 1)]), '{}') FROM (
        SELECT entry FROM unnest(best[3:]) AS entry
        ORDER BY split_part(entry, ' ', 1)::float8 DESC, length(entry), entry COLLATE "C" LIMIT best[1]::int
    ) AS sorted
$$;
CREATE OR REPLACE AGGREGATE scalar.scalar_best(score float8, id anyelement, k int) (
    SFUNC = scalar.scalar_best_step, STYPE = text[], INITCOND = '{}', FINALFUNC = scalar.scalar_best_list,
    COMBINEFUNC = scalar.scalar_best_join, PARALLEL = SAFE
);
