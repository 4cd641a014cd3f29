-- Delete a session whole. Returns false, and deletes nothing, when the caller no longer owns it; true also when it is gone already.

CREATE FUNCTION erase_session(p_session bigint, p_fence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sessions WHERE session_key = p_session AND fence = p_fence;
    IF NOT FOUND THEN
        RETURN NOT EXISTS (SELECT FROM sessions WHERE session_key = p_session);
    END IF;
    DELETE FROM segment_rows WHERE session_key = p_session;
    DELETE FROM segments WHERE session_key = p_session;
    DELETE FROM entries WHERE session_key = p_session;
    DELETE FROM usage_rows WHERE session_key = p_session;
    DELETE FROM cells WHERE session_key = p_session;
    DELETE FROM list_elements WHERE session_key = p_session;
    RETURN true;
END
$$;
