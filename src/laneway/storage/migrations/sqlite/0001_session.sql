-- One session in one file.
--
-- Ids of the usual kind (UUIDs in their canonical spelling) are kept as their 16 bytes, any other id as text.
-- Payloads and values are JSON as bytes. A `checksum` covers its whole row, so that a damaged row is found when it is read.

-- One row: what every commit checks and moves on, and who may commit. `fence` counts owners: a commit by an owner that was
-- replaced finds another fence and is refused. `expires_at` is Unix time, `expires_in_boot` the time since the machine's
-- start, both in milliseconds; they only say when another process may take over.
CREATE TABLE state (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    next_seq        INTEGER NOT NULL,
    next_segment    INTEGER NOT NULL,
    entry_count     INTEGER NOT NULL,
    usage_count     INTEGER NOT NULL,
    stats           BLOB NOT NULL,
    checksum        INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    owner           TEXT,
    expires_at      INTEGER NOT NULL,
    expires_in_boot INTEGER NOT NULL
);

-- Every id that is taken: entries and usage rows share one namespace.
CREATE TABLE ids (
    id  PRIMARY KEY,
    seq INTEGER NOT NULL
) WITHOUT ROWID;

-- `parent` is the parent's seq. Types: 0 message, 1 compaction, 2 branch summary, 3 custom.
CREATE TABLE entries (
    seq         INTEGER PRIMARY KEY,
    id          NOT NULL,
    parent      INTEGER,
    timestamp   INTEGER NOT NULL,
    type        INTEGER NOT NULL,
    custom_type TEXT,
    checksum    INTEGER NOT NULL,
    payload     BLOB NOT NULL
);
CREATE INDEX entries_by_type ON entries (type, seq) WHERE type <> 0;
CREATE INDEX entries_by_custom_type ON entries (custom_type, seq) WHERE type = 3;

CREATE TABLE usage_rows (
    seq       INTEGER PRIMARY KEY,
    id        NOT NULL,
    entry_id,
    timestamp INTEGER NOT NULL,
    checksum  INTEGER NOT NULL,
    payload   BLOB NOT NULL
);

CREATE TABLE cells (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    checksum  INTEGER NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

CREATE TABLE elements (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    checksum  INTEGER NOT NULL,
    value     BLOB NOT NULL,
    PRIMARY KEY (namespace, key, seq)
) WITHOUT ROWID;

-- The branch index, a projection of `entries.parent`. A branch is the entries of its segment (above `fork_seq`), then those
-- copied into it (above `base_seq`, up to and with `fork_seq`), then its base up to `base_seq`, and so on.
-- `compaction_seq` is the newest compaction on the path up to `fork_seq`, 0 if there is none.
CREATE TABLE segments (
    segment        INTEGER PRIMARY KEY,
    base           INTEGER NOT NULL,
    base_seq       INTEGER NOT NULL,
    fork_seq       INTEGER NOT NULL,
    compaction_seq INTEGER NOT NULL
);

-- Which segment an entry is in: every entry from `first_seq` to `last_seq`. The last run of all is open (2^63 - 1), so
-- going on in the same segment writes nothing here.
CREATE TABLE runs (
    first_seq INTEGER PRIMARY KEY,
    last_seq  INTEGER NOT NULL,
    segment   INTEGER NOT NULL
);
CREATE INDEX runs_by_segment ON runs (segment);

CREATE TABLE copies (
    segment INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (segment, seq)
) WITHOUT ROWID;

CREATE TABLE compactions (
    segment INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (segment, seq)
) WITHOUT ROWID;
