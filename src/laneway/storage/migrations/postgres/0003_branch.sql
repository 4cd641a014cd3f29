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
    segments_on_path bigint[] := '{}';
    lows bigint[] := '{}';
    highs bigint[] := '{}';
    stop_id_seq bigint;
    stop_seq bigint;
    at_segment bigint;
    high bigint;
    base_at record;
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
        stop_seq := NULL;
        IF p_stop_type IS NOT NULL THEN
            SELECT r.seq INTO stop_seq FROM segment_rows r
            WHERE r.session_key = p_session AND r.segment = at_segment AND r.seq <= high AND r.type = p_stop_type
            ORDER BY r.seq DESC LIMIT 1;
        END IF;
        IF stop_id_seq <= high AND stop_id_seq > coalesce(stop_seq, 0) AND EXISTS (
            SELECT FROM segment_rows r WHERE r.session_key = p_session AND r.segment = at_segment AND r.seq = stop_id_seq
        ) THEN
            stop_seq := stop_id_seq;
        END IF;
        segments_on_path := segments_on_path || at_segment;
        lows := lows || coalesce(stop_seq, 0);
        highs := highs || high;
        EXIT WHEN stop_seq IS NOT NULL;
        SELECT s.base_segment, s.base_seq INTO base_at FROM segments s WHERE s.session_key = p_session AND s.segment = at_segment;
        EXIT WHEN base_at.base_segment IS NULL;
        at_segment := base_at.base_segment;
        high := base_at.base_seq;
    END LOOP;

    IF p_oldest_first THEN
        FOR i IN REVERSE array_length(segments_on_path, 1)..1 LOOP
            RETURN QUERY
            SELECT e.seq, e.id, e.parent_id, e.type, e.custom_type, e.timestamp, e.segment, CASE WHEN p_with_payload THEN e.payload END
            FROM segment_rows r JOIN entries e ON e.session_key = r.session_key AND e.seq = r.seq
            WHERE r.session_key = p_session AND r.segment = segments_on_path[i]
                AND r.seq >= greatest(lows[i], p_cursor + 1) AND r.seq <= highs[i]
                AND (p_type IS NULL OR r.type = p_type) AND (p_custom_type IS NULL OR r.custom_type = p_custom_type)
            ORDER BY r.seq LIMIT remaining;
            GET DIAGNOSTICS sent = ROW_COUNT;
            remaining := remaining - sent;
            EXIT WHEN remaining <= 0;
        END LOOP;
    ELSE
        FOR i IN 1..array_length(segments_on_path, 1) LOOP
            RETURN QUERY
            SELECT e.seq, e.id, e.parent_id, e.type, e.custom_type, e.timestamp, e.segment, CASE WHEN p_with_payload THEN e.payload END
            FROM segment_rows r JOIN entries e ON e.session_key = r.session_key AND e.seq = r.seq
            WHERE r.session_key = p_session AND r.segment = segments_on_path[i]
                AND r.seq >= lows[i] AND r.seq <= least(highs[i], p_cursor - 1)
                AND (p_type IS NULL OR r.type = p_type) AND (p_custom_type IS NULL OR r.custom_type = p_custom_type)
            ORDER BY r.seq DESC LIMIT remaining;
            GET DIAGNOSTICS sent = ROW_COUNT;
            remaining := remaining - sent;
            EXIT WHEN remaining <= 0;
        END LOOP;
    END IF;
END
$$;
