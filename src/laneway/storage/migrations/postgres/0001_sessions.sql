-- All sessions of a database. Every table is keyed by `session_key`, the short stand-in for a session's id.
--
-- Text columns compare bytewise (collation "C"), as the other stores do. JSON is kept as bytes: text could not hold NUL.
-- Foreign keys are left out on purpose: the only writers are the functions below, under the session's lease,
-- and each key would cost a look-up per row of every commit.

CREATE TABLE storage_version (version integer NOT NULL);
INSERT INTO storage_version VALUES (0);

-- One row per session: what a commit must check and move on, so that one update locks, checks, counts and renews.
-- `fence` counts owners. A commit names the fence it was given; an owner that was replaced names an old one and is refused.
CREATE TABLE sessions (
    session_key    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id     text COLLATE "C" NOT NULL UNIQUE,
    created_at     bigint NOT NULL,
    next_seq       bigint NOT NULL DEFAULT 1,
    next_segment   bigint NOT NULL DEFAULT 1,
    stats          bytea NOT NULL,
    fence          bigint NOT NULL DEFAULT 0,
    owner          text,
    expires_at     timestamptz,
    watched_until  timestamptz
) WITH (fillfactor = 50);

CREATE TABLE entries (
    session_key  bigint NOT NULL,
    seq          bigint NOT NULL,
    id           text COLLATE "C" NOT NULL,
    parent_id    text COLLATE "C",
    type         text COLLATE "C" NOT NULL,
    custom_type  text COLLATE "C",
    timestamp    bigint NOT NULL,
    segment      bigint NOT NULL,
    payload      bytea NOT NULL,
    PRIMARY KEY (session_key, id)
);
CREATE UNIQUE INDEX entries_by_seq ON entries (session_key, seq);

CREATE TABLE usage_rows (
    session_key  bigint NOT NULL,
    seq          bigint NOT NULL,
    id           text COLLATE "C" NOT NULL,
    entry_id     text COLLATE "C",
    timestamp    bigint NOT NULL,
    payload      bytea NOT NULL,
    PRIMARY KEY (session_key, id)
);
CREATE UNIQUE INDEX usage_rows_by_seq ON usage_rows (session_key, seq);

CREATE TABLE cells (
    session_key  bigint NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    value        bytea NOT NULL,
    PRIMARY KEY (session_key, namespace, key)
) WITH (fillfactor = 70);

CREATE TABLE list_elements (
    session_key  bigint NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    value        bytea NOT NULL,
    PRIMARY KEY (session_key, namespace, key, seq)
);

-- The branch index, a projection of `entries`: a branch is its segment's rows, then its base's rows up to `base_seq`, and so on.
-- `compaction_seq` is the newest compaction at or below `base_seq` on that path. Zeros stand for nothing.
CREATE TABLE segments (
    session_key     bigint NOT NULL,
    segment         bigint NOT NULL,
    base_segment    bigint NOT NULL,
    base_seq        bigint NOT NULL,
    compaction_seq  bigint NOT NULL,
    PRIMARY KEY (session_key, segment)
);
CREATE TABLE segment_rows (
    session_key  bigint NOT NULL,
    segment      bigint NOT NULL,
    seq          bigint NOT NULL,
    type         text COLLATE "C" NOT NULL,
    PRIMARY KEY (session_key, segment, seq)
);
CREATE INDEX segment_compactions ON segment_rows (session_key, segment, seq) WHERE type = 'compaction';
