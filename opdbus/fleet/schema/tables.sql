-- Hosts, their objects and changes; contents, texts and vectors shared by all hosts.
--
-- Every table of hosts' rows has the host in its primary key and is partitioned by it; contents,
-- texts and vectors are keyed by digests that the server computes. docs/fleet.md describes both.

CREATE EXTENSION IF NOT EXISTS vector SCHEMA public;
CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA public;

-- Functions that run with the owner's rights find types and operators in this schema; hosts need no
-- objects of their own.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
DO $$
BEGIN
  EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;

DO $$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['opdbus_host', 'opdbus_reader', 'opdbus_worker'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
    END IF;
  END LOOP;
END $$;

GRANT USAGE ON SCHEMA opdbus TO opdbus_host, opdbus_reader, opdbus_worker;

-- The words of a text; names are split at punctuation too, so that nginx finds nginx.service. To
-- compute them takes long: the index of words is read instead wherever there is one.
CREATE FUNCTION opdbus.words(text text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 5000 SET search_path = pg_catalog, pg_temp AS $$
  SELECT to_tsvector('english'::regconfig, left(text, 20000))
      || to_tsvector('english'::regconfig, translate(left(text, 20000), './:@_-=', '       '))
$$;

-- A state without the identities of a host: hardware addresses, serial numbers, UUIDs, addresses
-- and times. States with one shape are alike; opdbus.fleet.questions.identities has the same rule.
CREATE FUNCTION opdbus.masked(state text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT regexp_replace(regexp_replace(state,
    '"([^"]*[^a-z"])?(mac|mac_address|hwaddr|uuid|UUID|guid|serial|wwn|inode|machine_id|boot_id'
    '|invocation_id|fingerprint)": ("([^"\\]|\\.)*"|[0-9.]+)', '"": "*"', 'g'),
    '\m[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\M'
    '|\m[0-9a-f]{2}(:[0-9a-f]{2}){5}\M'
    '|(?<!ersion": "|[0-9.])(?!0\.0\.0\.0|127\.)[0-9]{1,3}(\.[0-9]{1,3}){3}(?![0-9.])(/[0-9]{1,2}\M)?'
    '|\m(fe80|fd[0-9a-f]{2}|2[0-9a-f]{3})(:[0-9a-f]{0,4}){2,7}(/[0-9]{1,3}\M)?'
    '|\m[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?',
    '*', 'g')
$$;

CREATE FUNCTION opdbus.shape(declared jsonb, observed jsonb) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT md5(opdbus.masked(coalesce(observed, declared)::text))::uuid
$$;

-- A name without what may number or identify an object; opdbus.fleet.questions.identities has the
-- same rule.
CREATE FUNCTION opdbus.name_pattern(name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT regexp_replace(opdbus.masked(name), '\m[0-9a-f]{12,}\M|[0-9]+', '*', 'g')
$$;

-- Models: vectors are comparable if their numerics are equal.
CREATE TABLE opdbus.numerics (
  numerics smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 300),
  level text NOT NULL CHECK (length(level) <= 40),
  dimension integer NOT NULL CHECK (dimension BETWEEN 1 AND 4096)
);

-- One row: the numerics that workers compute, and those by which questions are answered.
CREATE TABLE opdbus.fleet (
  id boolean PRIMARY KEY DEFAULT true CHECK (id),
  wanted smallint REFERENCES opdbus.numerics,
  serving smallint REFERENCES opdbus.numerics,
  sample real NOT NULL DEFAULT 0.05 CHECK (sample BETWEEN 0 AND 1),
  keep_days integer NOT NULL DEFAULT 90 CHECK (keep_days > 0),
  -- how much a host may send in a day, and how many objects it may have
  daily_bytes bigint NOT NULL DEFAULT 1073741824 CHECK (daily_bytes >= 16777216),
  most_objects integer NOT NULL DEFAULT 200000 CHECK (most_objects > 0)
);
INSERT INTO opdbus.fleet DEFAULT VALUES;

CREATE TABLE opdbus.host (
  host integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,56}$'),
  -- the database role that writes this host's rows
  role name NOT NULL UNIQUE,
  tags text[] NOT NULL DEFAULT '{}',
  -- a name made from the machine id; another machine with this role is refused
  machine text,
  added_at timestamptz NOT NULL DEFAULT now(),
  seen_at timestamptz,
  -- the stored state was the host's own at this time
  current_at timestamptz,
  -- all digests were last compared, and found equal, at this time
  compared_at timestamptz,
  -- the history stored: its epoch, its last row and that row's hash
  epoch integer NOT NULL DEFAULT 0,
  seq bigint NOT NULL DEFAULT 0,
  hash bytea NOT NULL DEFAULT '\x0000000000000000000000000000000000000000000000000000000000000000',
  -- rows of history that the host had not sent at `seen_at`
  backlog bigint NOT NULL DEFAULT 0,
  version text,
  level text,
  numerics smallint REFERENCES opdbus.numerics,
  -- (name, state, number of objects, reason) of each observer, as State1.Observers
  observers jsonb NOT NULL DEFAULT '[]' CHECK (pg_column_size(observers) <= 262144),
  -- why the host's history contradicts what it sent before; the first finding stays
  conflict text,
  conflict_at timestamptz,
  -- why the host's vectors are not taken
  vector_fault text,
  vector_fault_at timestamptz,
  -- the last transaction that changed its objects or history: hosts that changed since a snapshot
  -- are those of whose transaction it did not know
  changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
  -- in place of the fleet's; null: the fleet's
  daily_bytes bigint CHECK (daily_bytes >= 16777216),
  most_objects integer CHECK (most_objects > 0),
  -- bytes of states and history that it sent on this day (UTC)
  sent_on date NOT NULL DEFAULT 'epoch',
  sent_bytes bigint NOT NULL DEFAULT 0,
  -- since when its batches are refused, and why
  refused_at timestamptz,
  refusal text,
  -- numbers of its objects, and of those that drifted: a list of hosts counts no rows
  objects integer NOT NULL DEFAULT 0,
  drifted integer NOT NULL DEFAULT 0
);

-- Periods of a host's history: a new one begins where rows do not follow the stored ones.
CREATE TABLE opdbus.epoch (
  host integer NOT NULL REFERENCES opdbus.host ON DELETE CASCADE,
  -- a host whose history begins anew again and again would fill the tables
  epoch integer NOT NULL CHECK (epoch <= 10000),
  first_seq bigint NOT NULL,
  began_at timestamptz NOT NULL DEFAULT now(),
  -- first: nothing was stored before; gap: rows were pruned before they were sent;
  -- rewritten: the host's history contradicts the stored rows
  reason text NOT NULL CHECK (reason IN ('first', 'gap', 'rewritten')),
  -- rows up to this one were pruned; the next row follows this hash
  pruned_seq bigint NOT NULL DEFAULT 0,
  pruned_hash bytea,
  PRIMARY KEY (host, epoch)
);

-- What the server witnessed: the hash of a row of a host's history, when it was stored.
CREATE TABLE opdbus.checkpoint (
  host integer NOT NULL REFERENCES opdbus.host ON DELETE CASCADE,
  epoch integer NOT NULL,
  seq bigint NOT NULL,
  hash bytea NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (host, epoch, seq)
);

CREATE TABLE opdbus.text (
  digest bytea PRIMARY KEY CHECK (length(digest) = 32),
  text text NOT NULL,
  words tsvector NOT NULL
);
CREATE INDEX text_words ON opdbus.text USING gin (words);
CREATE INDEX text_trigrams ON opdbus.text USING gin (text gin_trgm_ops);

-- States of objects, shared by all hosts that have an equal one.
CREATE TABLE opdbus.content (
  digest bytea PRIMARY KEY CHECK (length(digest) = 32),
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  source text NOT NULL,
  declared jsonb,
  observed jsonb,
  text bytea NOT NULL,
  -- names of fields, and FIELD=VALUE in lower case: narrows conditions
  terms text[] NOT NULL,
  shape uuid GENERATED ALWAYS AS (opdbus.shape(declared, observed)) STORED,
  name_pattern text GENERATED ALWAYS AS (opdbus.name_pattern(name)) STORED
);
CREATE INDEX content_object ON opdbus.content (plugin, kind, name);
CREATE INDEX content_name ON opdbus.content (lower(name));
CREATE INDEX content_text ON opdbus.content (text);
CREATE INDEX content_terms ON opdbus.content USING gin (terms);

-- Names of fields as they are written, and words of objects' names: few, and only added to.
CREATE TABLE opdbus.field (name text PRIMARY KEY);
CREATE TABLE opdbus.name_word (word text PRIMARY KEY);
CREATE INDEX name_word_trigrams ON opdbus.name_word USING gin (word gin_trgm_ops);

CREATE TABLE opdbus.object (
  host integer NOT NULL,
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  content bytea NOT NULL,
  -- microseconds since 1970, by the host's clock
  updated_at bigint NOT NULL,
  PRIMARY KEY (host, plugin, kind, name)
) PARTITION BY HASH (host);

CREATE TABLE opdbus.drift (
  host integer NOT NULL,
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  class text NOT NULL,
  severity text NOT NULL,
  -- seconds since 1970
  since bigint NOT NULL,
  -- (field, declared value, observed value, severity) each, values as JSON
  fields jsonb NOT NULL,
  PRIMARY KEY (host, plugin, kind, name)
) PARTITION BY HASH (host);

CREATE TABLE opdbus.change (
  host integer NOT NULL,
  epoch integer NOT NULL,
  seq bigint NOT NULL,
  -- these ten values and the digest of the fields are what the hash covers
  at bigint NOT NULL,
  boot text NOT NULL,
  source text NOT NULL,
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  what text NOT NULL,
  cause text NOT NULL,
  folded bigint NOT NULL,
  digest text NOT NULL,
  hash bytea NOT NULL,
  -- (path, before, after) each, values as JSON; null where they were erased
  fields jsonb,
  sentence text NOT NULL,
  severity text NOT NULL,
  -- who did it, as History1.Changes gives it: by, by_row, as_root, why, lines
  known jsonb NOT NULL,
  PRIMARY KEY (host, epoch, seq)
) PARTITION BY HASH (host);
CREATE INDEX change_at ON opdbus.change (at);
CREATE INDEX change_object ON opdbus.change (host, plugin, kind, name, at);
CREATE INDEX change_words ON opdbus.change USING gin (opdbus.words(sentence));
-- First listings are counted only: each host has one row of each object that it had.
CREATE INDEX change_first ON opdbus.change (at, host) INCLUDE (plugin, kind) WHERE cause = 'first';

DO $$
BEGIN
  FOR part IN 0..15 LOOP
    EXECUTE format('CREATE TABLE opdbus.object_%s PARTITION OF opdbus.object'
                   ' FOR VALUES WITH (MODULUS 16, REMAINDER %s)', part, part);
    EXECUTE format('CREATE TABLE opdbus.drift_%s PARTITION OF opdbus.drift'
                   ' FOR VALUES WITH (MODULUS 16, REMAINDER %s)', part, part);
    EXECUTE format('CREATE TABLE opdbus.change_%s PARTITION OF opdbus.change'
                   ' FOR VALUES WITH (MODULUS 16, REMAINDER %s)', part, part);
  END LOOP;
END $$;
CREATE INDEX object_content ON opdbus.object (content);
CREATE INDEX object_name ON opdbus.object (plugin, kind, name);

-- Published vectors; `sent_by` is the host that computed one, null if a worker did.
CREATE TABLE opdbus.vector (
  numerics smallint NOT NULL,
  digest bytea NOT NULL,
  v halfvec NOT NULL,
  sent_by integer,
  PRIMARY KEY (numerics, digest)
) PARTITION BY LIST (numerics);
-- Vectors that hosts computed are looked at again in this order.
CREATE INDEX vector_sent_by ON opdbus.vector (sent_by, digest) WHERE sent_by IS NOT NULL;

-- The worker that has a host's row locked looks at its vectors; hosts cannot lock rows here.
CREATE TABLE opdbus.examination (
  host integer PRIMARY KEY REFERENCES opdbus.host ON DELETE CASCADE
);

-- Vectors that hosts sent and no worker has looked at yet.
CREATE TABLE opdbus.offered_vector (
  host integer NOT NULL,
  numerics smallint NOT NULL,
  digest bytea NOT NULL,
  v halfvec NOT NULL,
  PRIMARY KEY (host, numerics, digest)
);

-- Texts that lack a vector: the queue of workers.
CREATE TABLE opdbus.embedding_task (
  numerics smallint NOT NULL,
  digest bytea NOT NULL,
  -- a host that has the vector may send it until then
  not_before timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (numerics, digest)
);
CREATE INDEX embedding_task_order ON opdbus.embedding_task (numerics, not_before);

-- What a host sends lies here until `apply_batch` of the same transaction. A batch of the sender has
-- at most 500 rows.
CREATE UNLOGGED TABLE opdbus.staged_object (
  host integer NOT NULL,
  place integer NOT NULL CHECK (place BETWEEN 0 AND 4095),
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  updated_at bigint,
  -- the canonical JSON of the state; null: the object is gone
  body text CHECK (octet_length(body) <= 4194304),
  PRIMARY KEY (host, place)
);
-- The same with its digests, while `apply_objects` runs.
CREATE UNLOGGED TABLE opdbus.arrived_object (
  host integer NOT NULL,
  place integer NOT NULL,
  plugin text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  updated_at bigint NOT NULL,
  content bytea,
  text bytea,
  body jsonb,
  PRIMARY KEY (host, place)
);
CREATE UNLOGGED TABLE opdbus.staged_change (
  host integer NOT NULL,
  seq bigint NOT NULL,
  -- what was hashed, as canonical JSON
  chained text NOT NULL CHECK (octet_length(chained) <= 1048576),
  hash bytea NOT NULL,
  details jsonb NOT NULL CHECK (pg_column_size(details) <= 4194304),
  PRIMARY KEY (host, seq)
);
