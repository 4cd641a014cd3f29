-- The path from an entry to the root, read through the branch index.
-- First the ranges of segments that the path consists of, up to the first stop; then their rows, in order, until the limit.

CREATE FUNCTION scan_branch(
    p_session bigint, p_start text, p_stop_type text, p_stop_id text,
    p_type text, p_custom_type text, p_oldest_first boolean, p_cursor bigint, p_limit bigint, p_with_payload boolean
) RETURNS TABLE (
    seq bigint, id text, parent_id text, type text, custom_type text, "timestamp" bigint, segment bigint, payload bytea
) LANGUAGE plpgsql STABLE ROWS 200 AS $$
#variable_conflict use_column
DECLARE
    path_segments bigint[] := '{}';
    lows bigint[] := '{}';
    highs bigint[] := '{}';
    stop_id_seq bigint;
    stop_seq bigint;
    at_segment bigint;
    high bigint;
    base record;
    remaining bigint := p_limit;
    sent bigint;
    i integer;
BEGIN
    SELECT e.segment, e.seq INTO at_segment, high FROM entries e WHERE e.session_key = p_session AND e.id = p_start;
    IF NOT FOUND THEN
        RAISE no_data_found USING MESSAGE = 'unknown entry';
    END IF;
    IF p_stop_id IS NOT NULL THEN
        SELECT e.seq INTO stop_id_seq FROM entries e WHERE e.session_key = p_session AND e.id = p_stop_id;
    END IF;

    LOOP
        SELECT s.base_segment, s.base_seq INTO base FROM segments s WHERE s.session_key = p_session AND s.segment = at_segment;
        IF NOT FOUND OR base.base_seq >= high OR (base.base_segment = 0) <> (base.base_seq = 0) THEN
            RAISE data_corrupted USING MESSAGE = 'segment ' || at_segment;
        END IF;
        stop_seq := NULL;
        IF p_stop_type = 'compaction' THEN -- the literal lets the partial index be used
            SELECT r.seq INTO stop_seq FROM segment_rows r
            WHERE r.session_key = p_session AND r.segment = at_segment AND r.seq > base.base_seq AND r.seq <= high AND r.type = 'compaction'
            ORDER BY r.seq DESC LIMIT 1;
        ELSIF p_stop_type IS NOT NULL THEN
            SELECT r.seq INTO stop_seq FROM segment_rows r
            WHERE r.session_key = p_session AND r.segment = at_segment AND r.seq > base.base_seq AND r.seq <= high AND r.type = p_stop_type
            ORDER BY r.seq DESC LIMIT 1;
        END IF;
        IF stop_id_seq <= high AND stop_id_seq > coalesce(stop_seq, base.base_seq) AND EXISTS (
            SELECT FROM segment_rows r WHERE r.session_key = p_session AND r.segment = at_segment AND r.seq = stop_id_seq
        ) THEN
            stop_seq := stop_id_seq;
        END IF;
        path_segments := path_segments || at_segment;
        lows := lows || coalesce(stop_seq, base.base_seq + 1);
        highs := highs || high;
        EXIT WHEN stop_seq IS NOT NULL OR base.base_segment = 0;
        at_segment := base.base_segment;
        high := base.base_seq;
    END LOOP;

    IF p_oldest_first THEN
        FOR i IN REVERSE array_length(path_segments, 1)..1 LOOP
            RETURN QUERY
            SELECT e.seq, e.id, e.parent_id, e.type, e.custom_type, e.timestamp, e.segment, CASE WHEN p_with_payload THEN e.payload END
            FROM segment_rows r JOIN entries e ON e.session_key = r.session_key AND e.seq = r.seq
            WHERE r.session_key = p_session AND r.segment = path_segments[i]
                AND r.seq >= greatest(lows[i], p_cursor + 1) AND r.seq <= highs[i]
                AND (p_type IS NULL OR r.type = p_type) AND (p_custom_type IS NULL OR e.custom_type = p_custom_type)
            ORDER BY r.seq LIMIT remaining;
            GET DIAGNOSTICS sent = ROW_COUNT;
            remaining := remaining - sent;
            EXIT WHEN remaining <= 0;
        END LOOP;
    ELSE
        FOR i IN 1..array_length(path_segments, 1) LOOP
            RETURN QUERY
            SELECT e.seq, e.id, e.parent_id, e.type, e.custom_type, e.timestamp, e.segment, CASE WHEN p_with_payload THEN e.payload END
            FROM segment_rows r JOIN entries e ON e.session_key = r.session_key AND e.seq = r.seq
            WHERE r.session_key = p_session AND r.segment = path_segments[i]
                AND r.seq >= lows[i] AND r.seq <= least(highs[i], p_cursor - 1)
                AND (p_type IS NULL OR r.type = p_type) AND (p_custom_type IS NULL OR e.custom_type = p_custom_type)
            ORDER BY r.seq DESC LIMIT remaining;
            GET DIAGNOSTICS sent = ROW_COUNT;
            remaining := remaining - sent;
            EXIT WHEN remaining <= 0;
        END LOOP;
    END IF;
END
$$;


-- What planning a commit needs to know of the parents of its entries; see `Place`. `p_max_copied` bounds the counting.
CREATE FUNCTION find_places(p_session bigint, p_ids text[], p_max_copied bigint)
RETURNS TABLE (id text, segment bigint, seq bigint, is_tip boolean, compaction_segment bigint, compaction_seq bigint, after bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT e.id, e.segment, e.seq,
        NOT EXISTS (SELECT FROM segment_rows r WHERE r.session_key = p_session AND r.segment = e.segment AND r.seq > e.seq),
        (SELECT c.segment FROM entries c WHERE c.session_key = p_session AND c.seq = newest.seq), newest.seq,
        CASE WHEN newest.seq > 0 AND newest.seq >= s.base_seq THEN (SELECT count(*) FROM (
            SELECT FROM segment_rows r WHERE r.session_key = p_session AND r.segment = e.segment AND r.seq > newest.seq AND r.seq <= e.seq
            LIMIT p_max_copied + 1) AS counted)
        END
    FROM entries e
    JOIN segments s ON s.session_key = p_session AND s.segment = e.segment
    CROSS JOIN LATERAL (
        SELECT coalesce((
            SELECT r.seq FROM segment_rows r
            WHERE r.session_key = p_session AND r.segment = e.segment AND r.seq <= e.seq AND r.type = 'compaction'
            ORDER BY r.seq DESC LIMIT 1), s.compaction_seq) AS seq
    ) AS newest
    WHERE e.session_key = p_session AND e.id = ANY (p_ids)
$$;
