-- Add entries to the branch index: new segments, what these copy, and a row for every entry in its home.
-- Copies come last and in order: a segment may copy from another that is new too. Rows that they must not see are above `upto`.

CREATE FUNCTION add_to_branches(
    p_session bigint, e_seq bigint[], e_type text[], e_segment bigint[],
    g_segment bigint[], g_base bigint[], g_base_seq bigint[], g_compaction_seq bigint[],
    c_segment bigint[], c_source bigint[], c_above bigint[], c_upto bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO segment_rows (session_key, segment, seq, type)
    SELECT p_session, r.segment, r.seq, r.type FROM unnest(e_segment, e_seq, e_type) AS r (segment, seq, type);
    IF g_segment IS NOT NULL THEN
        INSERT INTO segments (session_key, segment, base_segment, base_seq, compaction_seq)
        SELECT p_session, g.segment, g.base_segment, g.base_seq, g.compaction_seq
        FROM unnest(g_segment, g_base, g_base_seq, g_compaction_seq) AS g (segment, base_segment, base_seq, compaction_seq);
    END IF;
    IF c_segment IS NOT NULL THEN
        FOR i IN 1..cardinality(c_segment) LOOP
            INSERT INTO segment_rows (session_key, segment, seq, type)
            SELECT p_session, c_segment[i], r.seq, r.type FROM segment_rows r
            WHERE r.session_key = p_session AND r.segment = c_source[i] AND r.seq > c_above[i] AND r.seq <= c_upto[i];
        END LOOP;
    END IF;
END
$$;

-- One commit, one call, one round trip. Groups of rows come as parallel arrays; a group that is absent is NULL.
-- The caller has already put the writes in their final form: of each cell and list only what remains after the commit.
-- Returns false, and writes nothing, when the caller no longer owns the session or does not know its latest state.

CREATE FUNCTION commit_writes(
    p_session bigint, p_fence bigint, p_first_seq bigint, p_next_seq bigint, p_next_segment bigint,
    p_stats bytea, p_lease_seconds double precision,
    e_seq bigint[], e_timestamp bigint[], e_id text[], e_parent text[], e_type text[], e_custom text[], e_segment bigint[], e_payload bytea[],
    g_segment bigint[], g_base bigint[], g_base_seq bigint[], g_compaction_seq bigint[],
    c_segment bigint[], c_source bigint[], c_above bigint[], c_upto bigint[],
    u_seq bigint[], u_timestamp bigint[], u_id text[], u_entry_id text[], u_payload bytea[],
    x_namespace text[], x_key text[],
    v_namespace text[], v_key text[], v_seq bigint[], v_value bytea[],
    d_namespace text[], d_key text[],
    l_namespace text[], l_key text[], l_seq bigint[], l_value bytea[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    watched boolean;
BEGIN
    UPDATE sessions s
    SET next_seq = p_next_seq, next_segment = p_next_segment, stats = p_stats,
        expires_at = clock_timestamp() + make_interval(secs => p_lease_seconds)
    WHERE s.session_key = p_session AND s.fence = p_fence AND s.next_seq = p_first_seq
    RETURNING s.watched_until > clock_timestamp() INTO watched;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF e_seq IS NOT NULL THEN
        INSERT INTO entries (session_key, seq, id, parent_id, type, custom_type, timestamp, segment, payload)
        SELECT p_session, e.seq, e.id, e.parent_id, e.type, e.custom_type, e.timestamp, e.segment, e.payload
        FROM unnest(e_seq, e_timestamp, e_id, e_parent, e_type, e_custom, e_segment, e_payload)
            AS e (seq, timestamp, id, parent_id, type, custom_type, segment, payload);
        PERFORM add_to_branches(
            p_session, e_seq, e_type, e_segment, g_segment, g_base, g_base_seq, g_compaction_seq, c_segment, c_source, c_above, c_upto
        );
    END IF;
    IF u_seq IS NOT NULL THEN
        INSERT INTO usage_rows (session_key, seq, id, entry_id, timestamp, payload)
        SELECT p_session, u.seq, u.id, u.entry_id, u.timestamp, u.payload
        FROM unnest(u_seq, u_timestamp, u_id, u_entry_id, u_payload) AS u (seq, timestamp, id, entry_id, payload);
    END IF;
    -- Entries and usage rows share one namespace of ids.
    IF (e_seq IS NOT NULL AND EXISTS (SELECT FROM usage_rows u WHERE u.session_key = p_session AND u.id = ANY (e_id)))
        OR (u_seq IS NOT NULL AND EXISTS (SELECT FROM entries e WHERE e.session_key = p_session AND e.id = ANY (u_id)))
    THEN
        RAISE unique_violation USING MESSAGE = 'an id is used twice';
    END IF;
    IF x_key IS NOT NULL THEN
        DELETE FROM cells c USING unnest(x_namespace, x_key) AS x (namespace, key)
        WHERE c.session_key = p_session AND c.namespace = x.namespace AND c.key = x.key;
    END IF;
    IF v_seq IS NOT NULL THEN
        INSERT INTO cells (session_key, namespace, key, seq, value)
        SELECT p_session, v.namespace, v.key, v.seq, v.value FROM unnest(v_namespace, v_key, v_seq, v_value) AS v (namespace, key, seq, value)
        ON CONFLICT (session_key, namespace, key) DO UPDATE SET seq = excluded.seq, value = excluded.value;
    END IF;
    IF d_key IS NOT NULL THEN
        DELETE FROM list_elements l USING unnest(d_namespace, d_key) AS d (namespace, key)
        WHERE l.session_key = p_session AND l.namespace = d.namespace AND l.key = d.key;
    END IF;
    IF l_seq IS NOT NULL THEN
        INSERT INTO list_elements (session_key, namespace, key, seq, value)
        SELECT p_session, l.namespace, l.key, l.seq, l.value FROM unnest(l_namespace, l_key, l_seq, l_value) AS l (namespace, key, seq, value);
    END IF;
    -- A notification makes its commit wait for every other commit that sends one, so it is sent only while somebody watches.
    IF watched THEN
        PERFORM pg_notify('laneway_' || p_session, current_schema() || '/' || (p_next_seq - 1));
    END IF;
    RETURN true;
END
$$;
